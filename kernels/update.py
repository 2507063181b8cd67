"""Unpack a reduced bucket and update the parameters in one pass: the end of every training iteration.

Bytes moved per element, fp32: SGD 12 (read value and gradient, write value), with momentum 20, Adam 28.
"""

from collections.abc import Callable, Sequence

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.kernels.pack_plan import PackPlan

__all__ = ["updater"]


def updater(
    bucket: Array,
    plan: PackPlan,
    values: Sequence[Array],
    state: Sequence[list[Array]],
    optimizer: Optimizer,
    *,
    finite: Array | None = None,
) -> Callable[[Optimizer, int, float], object]:
    """A bound call that updates ``values`` with the gradients in ``bucket``.

    The call takes the optimiser, which may have other constants each time, the number of the iteration, which counts
    from 1, and a factor for the gradients.

    Args:
        bucket: the reduced gradients, flat, laid out by ``plan``; only read.
        values: the parameters, C-contiguous, of the plan's shapes.
        state: for each parameter what ``optimizer.new_state`` gave; changed as ``values`` are.
        finite: a boolean array of one element, beside the bucket. It is set to False where a gradient is infinite or
            not a number, and left as it is otherwise. Every rank has the same sum, so every rank has the same flag.

    Raises:
        ValueError: a shape differs from the plan's, or the optimizer has no kernel for these arrays.
    """
    plan.check(values)
    kernels, views = kernels_for(bucket), plan.views(bucket)
    call: Callable[[Optimizer, int, float], object] = kernels.updater(views, values, state, optimizer, finite=finite)
    return call
