"""Combine received data into local data: the arithmetic inside a reduction.

Bytes moved per element: the itemsize for each source, and twice for ``dst``, which is read and written.
"""

from collections.abc import Callable, Sequence

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for


def accumulator(dst: Array, src: Array, op: str = "sum") -> Callable[[], object]:
    """A bound call that does dst = dst op src: ``combiner`` with a single source.

    >>> import numpy as np
    >>> total = np.array([1.0, 2.0])
    >>> _ = accumulator(total, np.array([10.0, 20.0]))()
    >>> total.tolist()
    [11.0, 22.0]
    """
    return combiner(dst, (), (src,), op)


def combiner(dst: Array, before: Sequence[Array], after: Sequence[Array], op: str = "sum") -> Callable[[], object]:
    """A bound call that combines any number of arrays strictly from left to right:

        dst = before[0] op before[1] op ... op dst op after[0] op after[1] op ...

    Ranks that combine the same arrays in the same order get the same bits, whichever of the arrays is their ``dst``.

    Args:
        dst: an array of any type that the kernels know; fp16 and bf16 are combined in fp32, and rounded once.
        before: what comes before ``dst``: arrays of its shape and type, which are only read, each once. They may be
            pinned host memory where ``dst`` is on a device.
        after: what comes after it. One of the two may be empty.
        op: ``sum``, ``prod``, ``min`` or ``max``; the last two pass a NaN on.

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
            given = f"{src.dtype}{list(src.shape)} and {dst.dtype}{list(dst.shape)}"
            raise ValueError(f"src and dst must have the same shape and dtype, not {given}")
    call: Callable[[], object] = kernels_for(dst, *sources).combiner(dst, before, after, op)
    return call


def copier(dst: Array, src: Array, scale: float = 1.0) -> Callable[[], object]:
    """A bound call that does dst = src * scale; for two-byte types the product is formed in fp32.

    One array may be in pinned host memory while the other one is on a device.
    """
    call: Callable[[], object] = kernels_for(dst, src).copier(dst, src, scale)
    return call
