"""Combine what has arrived into what is there: the arithmetic inside a reduction.

Bytes moved per element: three times the itemsize (two reads, one write).
"""

from __future__ import annotations

from collections.abc import Callable

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for

__all__ = ["accumulate", "accumulator", "copier"]


def accumulate(dst: Array, src: Array, op: str = "sum") -> None:
    """dst = dst op src, element by element, in the arrays' own type.

    Args:
        op: ``sum``, ``prod``, ``min`` or ``max``; the last two pass a NaN on.

    >>> import numpy as np
    >>> total = np.array([1.0, 2.0])
    >>> accumulate(total, np.array([10.0, 20.0]))
    >>> total.tolist()
    [11.0, 22.0]
    """
    accumulator(dst, src, op)()


def accumulator(dst: Array, src: Array, op: str = "sum") -> Callable[[], object]:
    """``accumulate`` with arguments bound and dispatch done, for a plan that runs it a thousand times.

    Raises:
        ValueError: ``op`` is unknown, or the arrays differ in shape or type.
    """
    if dst.shape != src.shape or dst.dtype != src.dtype:
        given = f"{src.dtype}{list(src.shape)} and {dst.dtype}{list(dst.shape)}"
        raise ValueError(f"src and dst must have the same shape and dtype, not {given}")
    call: Callable[[], object] = kernels_for(dst, src).combiner(dst, src, op)
    return call


def copier(dst: Array, src: Array, scale: float = 1.0) -> Callable[[], object]:
    """A bound call that does dst = src * scale; for two-byte types the product is formed in fp32.

    One of the two may be pinned host memory while the other one is on a device.
    """
    call: Callable[[], object] = kernels_for(dst, src).copier(dst, src, scale)
    return call
