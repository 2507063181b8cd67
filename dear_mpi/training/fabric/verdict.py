"""The verdict on the summed gradients of an iteration, before any of them is used: by a statistic.

Each rank adds up a statistic of its own shards, and an all-reduce of a few kB adds up the ranks' sums. It comes after
the last reduction of an iteration, and costs its time on the wire. DeAR waits for nothing more, because its all-gathers
come after the last reduce-scatter anyway. A schedule that updates a bucket before all are on their way is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.statistic import Statistic


class Verdict:
    """By which factor the gradients of an iteration are multiplied; None if they are not used at all.

    Constructing is collective. A call, on the engine's thread, is made after the last reduction.

    Args:
        shards: the parts of the wire that this rank owns.
    """

    def __init__(self, statistic: Statistic, shards: Sequence[Array], transport: Transport, slab: Slab) -> None:
        self.statistic, self.shards = statistic, shards
        self.sums = slab.zeros(statistic.count, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.sums, transport, algorithm="auto", slab=slab)
        self.plan.name = "all_reduce of the norm"
        self.factor: float | None = 1.0

    def __call__(self) -> None:
        self.sums[...] = 0
        for shard in self.shards:
            self.sums += self.statistic.sums(shard)
        self.plan()
        self.factor = self.statistic.factor(self.sums)

    def free(self) -> None:
        self.plan.free()
