"""Where each tensor lies in a bucket: computed once, used by every pack and unpack.

    tensor 0   tensor 1       tensor 2                padding
    |--------|.|------------|.|--------------|.........|
    ^ offsets[0]  ^ offsets[1]   ^ offsets[2]          ^ padded = chunks x (a multiple of 128 bytes)

Tensors start on 16 bytes, so that a GPU reads them in whole vectors. The bucket consists of ``chunks`` equal chunks,
each a multiple of 128 bytes, so that no chunk shares a cache line with the next. The padding is zero and stays zero
(a sum of zeros is zero), hence it disturbs no norm and no finite check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array

TENSOR_BYTES = 16  # one vector access of a CUDA thread
CHUNK_BYTES = 128  # two cache lines of a CPU, one memory transaction of a GPU warp

Shape = tuple[int, ...]


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class PackPlan:
    """The layout of tensors of given shapes in one flat bucket; offsets and lengths are in elements."""

    shapes: tuple[Shape, ...]
    dtype: np.dtype[Any]
    offsets: tuple[int, ...]
    padded: int

    @classmethod
    def of(cls, shapes: Sequence[Shape], dtype: np.dtype[Any], chunks: int) -> PackPlan:
        """Lay tensors out for a bucket of ``dtype`` that will be cut into ``chunks`` equal chunks.

        >>> PackPlan.of([(3,), (2, 2)], np.dtype("float32"), chunks=2).offsets
        (0, 4)
        >>> PackPlan.of([(3,), (2, 2)], np.dtype("float32"), chunks=2).padded
        64
        """
        if chunks < 1:
            raise ValueError(f"chunks must be at least 1, not {chunks}")
        lengths = [round_up(math.prod(shape), max(1, TENSOR_BYTES // dtype.itemsize)) for shape in shapes]
        ends = list(accumulate(lengths, initial=0))
        padded = round_up(ends[-1], chunks * (CHUNK_BYTES // dtype.itemsize))
        return cls(tuple(map(tuple, shapes)), dtype, tuple(ends[:-1]), padded)

    @property
    def nbytes(self) -> int:
        """Length of the bucket in bytes."""
        return self.padded * self.dtype.itemsize

    def check(self, tensors: Sequence[Array]) -> None:
        """See that tensors have the shapes of the plan.

        Raises:
            ValueError: they have others.
        """
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes != self.shapes:
            raise ValueError(f"tensors must have the shapes of the plan, {self.shapes}, not {shapes}")

    def views(self, bucket: Array) -> list[Array]:
        """One view per tensor, of the tensor's shape, into ``bucket``."""
        if (bucket.shape, bucket.dtype) != ((self.padded,), self.dtype):
            given = f"{bucket.dtype}{list(bucket.shape)}"
            raise ValueError(f"bucket must be {self.dtype}[{self.padded}], not {given}")
        spans = zip(self.shapes, self.offsets, strict=True)
        return [bucket[offset : offset + math.prod(shape)].reshape(shape) for shape, offset in spans]
