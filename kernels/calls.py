"""Bind a kernel to its arrays once and call it often.

    packer, unpacker   gather tensors into a flat bucket, and scatter it back, with cast and scale
    copier             copy one array with cast and scale
    combiner           combine received and local data: the arithmetic of a reduction
    updater            update values with their gradients

On a GPU each call is one launch. Memory traffic in bytes per fp32 element: packing 8, a sum of two arrays 12, SGD 12,
with momentum 20, Adam 28.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from dear_mpi.kernels.array import Array, kernels_for
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype, is_floating

if TYPE_CHECKING:
    from dear_mpi.kernels.optimizers import Optimizer

Call: TypeAlias = Callable[[], object]
UpdateCall: TypeAlias = "Callable[[Optimizer, int, float], object]"


def packer(tensors: Sequence[Array], views: Sequence[Array], *, scale: float = 1.0) -> Call:
    """Return a call that writes each tensor, times ``scale``, into its view of a bucket.

    The product is formed in fp32, or in fp64 if one side is fp64.
    """
    check_shapes(tensors, views)
    return kernels_for(*views).packer(tensors, views, scale)


def unpacker(views: Sequence[Array], tensors: Sequence[Array], *, scale: float = 1.0) -> Call:
    """Reverse ``packer``."""
    check_shapes(tensors, views)
    return kernels_for(*views).unpacker(views, tensors, scale)


def copier(dst: Array, src: Array, scale: float = 1.0) -> Call:
    """Return a call for dst = src * scale; one may be in pinned host memory."""
    return kernels_for(dst, src).copier(dst, src, scale)


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str = "sum") -> Call:
    """Return a call that combines any number of arrays strictly from left to right.

        dst = before[0] op before[1] op ... op dst op after[0] op after[1] op ...

    ``dst`` does not change the bits. fp16 and bf16 are combined in fp32 and rounded once. NaN propagates through
    ``min`` and ``max``. Integers and bool on the host also take bitwise ops.

    >>> import numpy as np
    >>> total = np.array([1.0, 2.0])
    >>> combiner(total, [np.array([10.0, 20.0])], [np.array([100.0, 200.0]), np.ones(2)])()
    >>> total.tolist()
    [112.0, 223.0]
    """
    sources = [*before, *after]
    if not sources:
        raise ValueError("before and after are both empty: pass at least one source")
    for src in sources:
        if dst.shape != src.shape or dst.dtype != src.dtype:
            given = f"{described(src)} and {described(dst)}"
            raise ValueError(f"src and dst must have the same shape and dtype, not {given}")
    return kernels_for(dst, *sources).combiner(dst, before, after, op)


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None = None
) -> UpdateCall:
    """Return a call that updates flat ``values`` with ``grads``, both of any floating types.

    Under the scope ``tensor`` each is one tensor in its shape. The call takes the optimizer, the number of the update
    (from 1) and a factor for gradients. It sets ``finite`` to False for a non-finite gradient.

    >>> import numpy as np
    >>> from dear_mpi.kernels.optimizers import SGD
    >>> values = np.ones(3)
    >>> updater(np.array([1.0, 2.0, 3.0]), values, [], SGD(0.5))(SGD(0.5), 1, 1.0)
    >>> values.tolist()
    [0.5, 0.0, -0.5]
    """
    for name, array in {"grads": grads, "values": values}.items():
        flat = array.flags.forc and (array.ndim == 1 or optimizer.scope == "tensor")
        if not flat or not is_floating(array.dtype):
            allowed = ", ".join(dtype.name for dtype in DTYPES.values())
            raise ValueError(f"{name} must be flat, without gaps, and of {allowed}, not {described(array)}")
    if grads.shape != values.shape:
        raise ValueError(f"grads and values must be of one length, not {described(grads)} and {described(values)}")
    kept = [f"{compute_dtype(values.dtype)}{list(values.shape)}"] * optimizer.state_arrays
    given = [described(array) for array in state]
    if given != kept:
        raise ValueError(f"state of {type(optimizer).__name__} must be {listed(kept)}, not {listed(given)}")
    return kernels_for(grads, values, *state).updater(grads, values, state, optimizer, finite=finite)


def check_shapes(tensors: Sequence[Array], views: Sequence[Array]) -> None:
    shapes, places = [tensor.shape for tensor in tensors], [view.shape for view in views]
    if shapes != places:
        raise ValueError(f"tensors must have the shapes of the bucket's views, {places}, not {shapes}")


def described(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.forc else ' with gaps'}"


def listed(arrays: Sequence[str]) -> str:
    return " and ".join(arrays) or "no array"
