"""Which elements of a bucket travel: a share of them, drawn anew for each update, the same on all ranks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dear_mpi.kernels.array import Array
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
