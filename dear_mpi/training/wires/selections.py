"""Select the elements of a bucket that travel: a share, redrawn per update and equal on all ranks; or the largest.

``TopK`` sends a shard's largest elements with their places, k values and k 32-bit numbers; the others are zero. An
owner selects again from the sum of the received elements, so gathers do not grow with the number of ranks. Unsent
elements wait on the error line. A NaN counts as the largest.

Cost: 8 bytes per kept element; selecting takes 6 to 27 ns per element in NumPy, far more than adding, so it only pays
on slow links. Source: Aji and Heafield, Sparse Communication, EMNLP 2017; Lin et al., DGC, ICLR 2018.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.slab import CHUNK_BYTES

BLOCK = CHUNK_BYTES // 4  # elements: whole cache lines, and a divisor of every bucket's length
SEED = 20090926


@dataclass(frozen=True)
class RandomK:
    """Draw one random element from each stretch of 1 / ``share`` elements; draws are pairwise independent."""

    share: float
    encode_s: ClassVar[float] = 1.2e-9
    decode_s: ClassVar[float] = 1.4e-9  # with the redraw, for values and one optimiser array
    encode_call_s: ClassVar[float] = 30e-6  # cold cache; as far above a warm loop as int8 calls
    decode_call_s: ClassVar[float] = 35e-6

    def kept(self, count: int) -> int:
        return min(count, max(1, round(self.share * count)))

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        kept = self.kept(count)
        borders = np.arange(kept + 1) * count // kept
        drawn = np.random.default_rng([SEED, *draw]).random(kept)
        return borders[:-1] + (drawn * (borders[1:] - borders[:-1])).astype(np.int64)


@dataclass(frozen=True)
class RandomBlocks:
    """Draw blocks of 32 elements on a fixed grid, so that copies are contiguous."""

    share: float
    encode_s: ClassVar[float] = 0.8e-9
    decode_s: ClassVar[float] = 0.7e-9
    encode_call_s: ClassVar[float] = 30e-6  # cold cache; as far above a warm loop as int8 calls
    decode_call_s: ClassVar[float] = 35e-6

    def kept(self, count: int) -> int:
        return BLOCK * RandomK(self.share).kept(count // BLOCK)

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        blocks = RandomK(self.share).places(count // BLOCK, draw)
        return (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


VALUE, PLACE = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True)
class TopK:
    """Keep this share of each shard's elements, and at least one."""

    share: float
    encode_s: ClassVar[float] = 6e-9
    decode_s: ClassVar[float] = 0.5e-9
    encode_call_s: ClassVar[float] = 7e-6
    decode_call_s: ClassVar[float] = 3e-6

    def kept(self, count: int) -> int:
        return min(count, max(1, round(self.share * count)))

    def nbytes(self, count: int) -> int:
        return self.kept(count) * (VALUE.itemsize + PLACE.itemsize)

    def parts(self, codes: Array, count: int) -> tuple[Array, Array]:
        """Return the values and their places."""
        kept = self.kept(count)
        ends = kept * VALUE.itemsize, self.nbytes(count)
        return codes[: ends[0]].view(VALUE), codes[ends[0] : ends[1]].view(PLACE)

    def encode(self, x: Array, out: Array) -> None:
        xp: Any = array_module(x)
        values, places = self.parts(out, x.size)
        found = xp.argpartition(xp.abs(x), x.size - values.size)[x.size - values.size :]
        places[...] = xp.sort(found)
        values[...] = x[places]

    def decode(self, codes: Array, x: Array) -> None:
        values, places = self.parts(codes, x.size)
        x[...] = 0
        x[places] = values
