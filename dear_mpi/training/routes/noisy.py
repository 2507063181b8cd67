"""A leg of sums over the air, see ``wires/noise.py``: the owner of a shard adds noise to its sum.

pack | reduce_scatter gradients | add noise to the own shard         all_gather gradients | update all | unpack
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dear_mpi.training.routes.legs import BucketMemory, Leg
from dear_mpi.training.routes.memory import Memory
from dear_mpi.training.wires.noise import Noise


@dataclass(frozen=True, kw_only=True)
class AddNoise(Leg):
    """Add noise to this rank's shard of the gradients."""

    wire: Noise
    reads: ClassVar[tuple[str, ...]] = ("gradients",)
    writes: ClassVar[tuple[str, ...]] = ("gradients",)

    def compute_s(self, count: int, ranks: int) -> float:
        return self.wire.add_s * count / ranks

    def prove(self, memory: Memory) -> None:
        for rank in range(memory.size):
            memory.write("gradients", rank, rank, memory.symbol("code", memory.read("gradients", rank, rank)))

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        own, place = bucket.shard("gradients", bucket.rank), bucket.place(bucket.rank)
        filled = bucket.filled()[place]  # no layer writes over noise in padding
        begin = bucket.begin + place.start
        return lambda factor: self.wire.add(own, filled, (begin, bucket.own_updates))

    def __str__(self) -> str:
        return f"add noise of {self.wire.share:.3g} to the own shard of gradients"
