"""Which elements of a bucket travel: a share, drawn anew for each update, the same on all ranks; or the largest.

``TopK`` sends the largest elements of a shard, with their places: k values and k numbers of 32 bits; all others are
zero.

An owner that has added up what ranks sent selects anew, so what is gathered does not grow with the number of ranks.
What is left out waits in the line of errors. A NaN counts as the largest.

Cost: 8 bytes for each element that is kept; selecting takes 6 to 27 ns an element in NumPy, far more than adding. So it
pays on slow links alone. Source: Aji and Heafield, Sparse Communication, EMNLP 2017; Lin et al., DGC, ICLR 2018.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.slab import CHUNK_BYTES

BLOCK = CHUNK_BYTES // 4  # elements: whole cache lines, and a divisor of the length of every bucket
SEED = 20090926


@dataclass(frozen=True)
class RandomK:
    """One element, at random, of each stretch of so many that one is the share; any two are drawn independently."""

    share: float
    encode_s: ClassVar[float] = 1.2e-9
    decode_s: ClassVar[float] = 1.4e-9  # drawn again; of values and an array of the optimiser
    encode_call_s: ClassVar[float] = 30e-6  # with nothing in a cache, as much above a loop as calls of int8 are
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
    """Blocks of 32 elements, on a fixed grid, so that what is copied lies together."""

    share: float
    encode_s: ClassVar[float] = 0.8e-9
    decode_s: ClassVar[float] = 0.7e-9
    encode_call_s: ClassVar[float] = 30e-6  # with nothing in a cache, as much above a loop as calls of int8 are
    decode_call_s: ClassVar[float] = 35e-6

    def kept(self, count: int) -> int:
        return BLOCK * RandomK(self.share).kept(count // BLOCK)

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        blocks = RandomK(self.share).places(count // BLOCK, draw)
        return (blocks[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)


VALUE, PLACE = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True)
class TopK:
    """Keep this share of the elements of each shard, and at least one."""

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
        """The values, and their places."""
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
