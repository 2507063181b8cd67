"""Update flat arrays of values with their gradients, in one pass: the end of every training iteration.

Bytes moved per element, fp32: SGD 12 (read value and gradient, write value), with momentum 20, Adam 28.
"""

from collections.abc import Callable, Sequence

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype, is_floating
from dear_mpi.kernels.optimizers import Optimizer


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None = None
) -> Callable[[Optimizer, int, float], object]:
    """A bound call that updates ``values`` with ``grads``; on a GPU it is one launch.

    All arrays are flat, without gaps, of one library and of one length, which may be 0.
    The call takes the optimiser, which may have other constants each time, the number of the update, counted from 1,
    and a factor for the gradients.

    Args:
        grads: the gradients, of any floating type; only read.
        values: the parameters, of any floating type, which may be another one.
        state: what ``optimizer.new_state(values)`` gave, or parts of it; changed as ``values`` are.
        finite: a boolean array of one element, beside the others. It is set to False where a gradient is infinite or
            not a number, and left as it is otherwise. Every rank has the same sum, so every rank has the same flag.

    Raises:
        ValueError: an array has another shape or type, there are more or fewer of them than the optimizer keeps, or the
            optimizer has no kernel for these arrays.

    >>> import numpy as np
    >>> from dear_mpi.kernels.optimizers import SGD
    >>> values = np.ones(3)
    >>> updater(np.array([1.0, 2.0, 3.0]), values, [], SGD(0.5))(SGD(0.5), 1, 1.0)
    >>> values.tolist()
    [0.5, 0.0, -0.5]
    """
    check(grads, values, state, optimizer)
    kernels = kernels_for(grads, values, *state)
    call: Callable[[Optimizer, int, float], object] = kernels.updater(grads, values, state, optimizer, finite=finite)
    return call


def check(grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer) -> None:
    """See that arrays are flat, of one length, and of the types that an optimiser works on."""
    for name, array in {"grads": grads, "values": values}.items():
        if array.ndim != 1 or not array.flags.c_contiguous or not is_floating(array.dtype):
            allowed = ", ".join(dtype.name for dtype in DTYPES.values())
            raise ValueError(f"{name} must be flat, without gaps, and of {allowed}, not {described(array)}")
    if grads.size != values.size:
        raise ValueError(f"grads and values must be of one length, not {described(grads)} and {described(values)}")
    kept = [f"{compute_dtype(values.dtype)}[{values.size}]"] * optimizer.state_arrays
    given = [described(array) for array in state]
    if given != kept:
        raise ValueError(f"state of {type(optimizer).__name__} must be {listed(kept)}, not {listed(given)}")


def described(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.c_contiguous else ' with gaps'}"


def listed(arrays: Sequence[str]) -> str:
    return " and ".join(arrays) or "no array"
