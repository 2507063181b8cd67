"""``cupyx`` of the stand-in: page-locked NumPy arrays."""

import math

import numpy as np
from cupy import storage

__all__ = ["empty_like_pinned", "empty_pinned", "zeros_like_pinned", "zeros_pinned"]

is_standin = True


def empty_pinned(shape, dtype=float, order="C"):
    """A NumPy array of page-locked memory; it is registered until no view of it is left."""
    shape, dtype = (shape,) if isinstance(shape, int | np.integer) else tuple(shape), np.dtype(dtype)
    allocation = storage.pinned(math.prod(shape) * dtype.itemsize)
    return allocation.bytes().view(dtype).reshape(shape, order=order)


def zeros_pinned(shape, dtype=float, order="C"):
    array = empty_pinned(shape, dtype, order)
    array[...] = 0
    return array


def empty_like_pinned(a, dtype=None, order="C"):
    return empty_pinned(a.shape, dtype or a.dtype, order)


def zeros_like_pinned(a, dtype=None, order="C"):
    return zeros_pinned(a.shape, dtype or a.dtype, order)
