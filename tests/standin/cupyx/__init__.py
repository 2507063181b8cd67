"""``cupyx`` of the stand-in: page-locked NumPy arrays."""

import math

import numpy as np
from cupy import storage

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
