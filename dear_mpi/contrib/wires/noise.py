"""Simulate sums over the air: all ranks transmit at once, the waves add up, and the receiver also gets noise.

The owner of an uncompressed sum adds normal noise, a share of its shard's root mean square, from a shared seed, anew
for each shard and update: runs are reproducible.

pack | reduce_scatter gradients | add noise to the own shard         all_gather gradients | update all | unpack

Source: Amiri and Gündüz, arXiv 1901.00844; Hellström et al., arXiv 2008.13492.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.training.routes import FULL, SHARDED, BucketMemory, Kind, Memory, Route, Stage, share

SEED = 20211209


@dataclass(frozen=True)
class Noise:
    """Add normal noise, a share of the root mean square; a non-finite element makes all of it NaN."""

    share: float
    add_s: float = 15e-9  # of a core, per element

    def add(self, x: Array, filled: Array, draw: tuple[int, ...]) -> None:
        """Add noise to the filled elements of a shard; equal for equal ``draw``."""
        xp: Any = array_module(x)
        given = x.astype(compute_dtype(x.dtype))
        size = self.share * xp.sqrt((given * given).sum() / max(1, int(filled.sum())))
        drawn = np.random.default_rng([SEED, *draw]).standard_normal(x.size, np.float32) * filled
        x[...] = given + size * xp.asarray(drawn)


@dataclass(frozen=True, kw_only=True)
class AddNoise(Stage):
    wire: Noise
    reads: ClassVar[tuple[str, ...]] = ("gradients",)
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.wire.add_s * count / ranks

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            memory.write("gradients", rank, rank, memory.symbol("code", memory.read("gradients", rank, rank)))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        own = bucket.shard("gradients", bucket.rank)
        filled = bucket.filled(bucket.rank)  # no layer overwrites noise in padding
        return lambda factor: self.wire.add(own, filled, (bucket.begin, bucket.rank, bucket.own_updates))

    def __str__(self) -> str:
        return f"add noise of {self.wire.share:.3g} to the own shard of gradients"


def noisy(name: str, wire: Noise, *, sharded: bool = False, error: str | None = None) -> Route:
    """Make a core route with inexact sums; it never keeps the error."""
    route = SHARDED if sharded else FULL
    return replace(route, name=name, out=(*route.out, AddNoise(wire=wire)))


NOISE = Kind(Noise, noisy, share, "noise:1%", types=tuple(DTYPES), options=())
