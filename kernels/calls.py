"""The kernels as bound calls: bind once, call often. What a call needs, such as the table of a launch, is made with it.

    packer, unpacker   gather tensors into a flat bucket, and scatter it back, with cast and scale
    copier             one array into another one, the same way
    combiner           received data into local data: the arithmetic inside a reduction
    updater            values by their gradients: the end of every training iteration

On a GPU each call is one launch, whatever the number of tensors or sources. Bytes moved per element: the itemsize of
each array for each time that it is read or written; of fp32, packing moves 8, a sum of two 12, SGD 12, with momentum
20, Adam 28. Where tensors already *are* views into the bucket, they need no packing.
"""

from collections.abc import Callable, Sequence

from dear_mpi.kernels.array import Array, kernels_for
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype, is_floating
from dear_mpi.kernels.optimizer import Optimizer

Call = Callable[[], object]
UpdateCall = Callable[[Optimizer, int, float], object]


def packer(tensors: Sequence[Array], views: Sequence[Array], *, scale: float = 1.0) -> Call:
    """A call that writes every tensor, times ``scale``, into its view of a bucket; ValueError if a shape differs.

    Args:
        tensors: arrays of any floating types; on a GPU they must be contiguous.
        views: of the same shapes, and of one type; what the bucket has between them is not touched.
        scale: multiplied in fp32 (in fp64 where one side is fp64) before the cast.
    """
    check_shapes(tensors, views)
    call: Call = kernels_for(*views).packer(tensors, views, scale)
    return call


def unpacker(views: Sequence[Array], tensors: Sequence[Array], *, scale: float = 1.0) -> Call:
    """A call that writes every view of a bucket, times ``scale``, into its tensor: the mirror image."""
    check_shapes(tensors, views)
    call: Call = kernels_for(*views).unpacker(views, tensors, scale)
    return call


def copier(dst: Array, src: Array, scale: float = 1.0) -> Call:
    """A call that does dst = src * scale, as in ``packer``; one may be in pinned host memory where the other is not."""
    call: Call = kernels_for(dst, src).copier(dst, src, scale)
    return call


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str = "sum") -> Call:
    """A call that combines any number of arrays strictly from left to right:

        dst = before[0] op before[1] op ... op dst op after[0] op after[1] op ...

    Ranks that combine the same arrays in the same order get the same bits, whichever of the arrays is their ``dst``.

    Args:
        dst: an array of any type that the kernels know; fp16 and bf16 are combined in fp32, and rounded once. NumPy's
            sums of bool are "or", its products "and".
        before: what comes before ``dst``: arrays of its shape and type, which are only read, each once. They may be
            pinned host memory where ``dst`` is on a device.
        after: what comes after it. One of the two may be empty.
        op: ``sum``, ``prod``, ``min`` or ``max``; the last two pass a NaN on. On the host, for integers and bool, also
            ``band``, ``bor`` and ``bxor``.

    Raises:
        ValueError: there is no source, ``op`` is unknown, or the arrays differ in shape or type. Arrays with gaps are
            refused on a device, and on the host where they have several axes and there are several sources.

    >>> import numpy as np
    >>> total = np.array([1.0, 2.0])
    >>> combiner(total, [np.array([10.0, 20.0])], [np.array([100.0, 200.0]), np.ones(2)])()
    >>> total.tolist()
    [112.0, 223.0]
    """
    sources = [*before, *after]
    if not sources:
        raise ValueError("there must be a source, before or after dst")
    for src in sources:
        if dst.shape != src.shape or dst.dtype != src.dtype:
            given = f"{described(src)} and {described(dst)}"
            raise ValueError(f"src and dst must have the same shape and dtype, not {given}")
    call: Call = kernels_for(dst, *sources).combiner(dst, before, after, op)
    return call


def updater(
    grads: Array, values: Array, state: Sequence[Array], optimizer: Optimizer, *, finite: Array | None = None
) -> UpdateCall:
    """A call that updates ``values`` with ``grads``; both of any floating types.

    All arrays are flat, without gaps, of one library and of one length, which may be 0; if the optimizer's scope is
    ``tensor``, they are one tensor, in its shape, or all transposed. The call takes the optimiser, which may have other
    constants each time, the number of the update, counted from 1, and a factor for the gradients, which are only read.

    Args:
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
    kernels = kernels_for(grads, values, *state)
    call: UpdateCall = kernels.updater(grads, values, state, optimizer, finite=finite)
    return call


def check_shapes(tensors: Sequence[Array], views: Sequence[Array]) -> None:
    shapes, places = [tensor.shape for tensor in tensors], [view.shape for view in views]
    if shapes != places:
        raise ValueError(f"tensors must have the shapes of the bucket's views, {places}, not {shapes}")


def described(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.forc else ' with gaps'}"


def listed(arrays: Sequence[str]) -> str:
    return " and ".join(arrays) or "no array"
