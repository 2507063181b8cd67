"""Allocate communication memory in a few large slabs that live as long as their arrays.

A GPU shares memory with other processes by a handle to a whole ``cudaMalloc``, and MPI libraries cache few handles
(MPICH: 16).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, kernels_for

ALIGNMENT = 256
CHUNK_BYTES = 128  # two cache lines, one memory transaction of a GPU warp
TENSOR_BYTES = 16  # vector access of a CUDA thread


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class Slab:
    """Memory of ``nbytes``; later allocations take ``growth`` bytes, or an array's.

    >>> slab = Slab(lambda nbytes: np.empty(nbytes, np.uint8), 1024)
    >>> slab.zeros(3, np.dtype("float32")), slab.zeros(1, np.dtype("int64")), slab.left
    (array([0., 0., 0.], dtype=float32), array([0]), 512)
    """

    def __init__(self, allocate: Callable[[int], Array], nbytes: int = 0, *, growth: int = 0) -> None:
        self.allocate, self.growth, self.left = allocate, growth, round_up(nbytes, ALIGNMENT)
        self.block = allocate(self.left)

    @classmethod
    def beside(cls, array: Array, nbytes: int = 0, *, growth: int = 0) -> "Slab":
        return cls(kernels_for(array).allocate, nbytes, growth=growth)

    @classmethod
    def pinned(cls, array: Array) -> "Slab":
        return cls(kernels_for(array).pinned)

    def another(self) -> "Slab":
        return Slab(self.allocate, growth=self.growth)

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        nbytes = count * dtype.itemsize
        taken = round_up(nbytes, ALIGNMENT)
        if taken > self.left:
            self.left = max(self.growth, taken)
            self.block = self.allocate(self.left)
        start = self.block.size - self.left
        self.left -= taken
        return self.block[start : start + nbytes].view(dtype)

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        array = self.empty(count, dtype)
        array.view(np.uint8)[...] = 0
        return array
