"""How many bytes chunks have, for many sizes of the buffer at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.array import Array


@dataclass(frozen=True)
class Sizes:
    """Sizes of a buffer in equal shards.

    Attributes:
        shares: elements of a shard, int64, shape (sizes,).
        parts: the chunks that a shard is cut into.
        itemsize: bytes of an element.
    """

    shares: Array
    parts: int
    itemsize: int

    def nbytes(self, part: int, length: int) -> Array:
        """The bytes of so many chunks from this part of a shard on, shape (sizes,).

        >>> Sizes(np.array([10, 20]), parts=4, itemsize=1).nbytes(3, 2)
        array([ 5, 10])
        """
        return self.itemsize * (self.border(part + length) - self.border(part))

    def border(self, chunk: int) -> Array:
        """Elements before a chunk: of whole shards, and of some of the parts that the next shard is cut into."""
        (shards, part), (small, larger) = divmod(chunk, self.parts), divmod(self.shares, self.parts)
        before: Array = shards * self.shares + part * small + np.minimum(part, larger)
        return before
