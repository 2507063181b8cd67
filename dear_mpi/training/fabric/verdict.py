"""The verdict on the summed gradients of an iteration, before any of them is used: by a statistic.

Each rank adds its shard of a bucket to a statistic when the bucket's way out is over, before the way back may round the
sums. So all schedules see the same sums. An all-reduce of a few kB adds up what the ranks have. It comes after the
last reduction of an iteration, and costs its time. DeAR waits for nothing more, because its all-gathers come after the
last reduce-scatter anyway. A schedule that updates a bucket before all are on their way is refused.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.statistic import Statistic


class Verdict:
    """By which factor the gradients of an iteration are multiplied; None if they are not used at all.

    Constructing is collective. On the engine's thread the sums of each bucket are added when its way out is over, and a
    call is made after the last one.

    Args:
        statistics: at least one; their factors are multiplied, and one may say that gradients are not to be used.
    """

    def __init__(self, statistics: Sequence[Statistic], transport: Transport, slab: Slab) -> None:
        self.statistics = statistics
        ends = list(accumulate(each.count for each in statistics))
        self.sums = slab.zeros(ends[-1], DTYPES["fp64"])
        self.each = [self.sums[end - statistic.count : end] for end, statistic in zip(ends, statistics, strict=True)]
        self.plan = make_plan("all_reduce", self.sums, transport, algorithm="auto", slab=slab)
        self.plan.name = f"all_reduce of {' and '.join(each.called for each in statistics)}"
        self.factor: float | None = 1.0

    @property
    def scale(self) -> float:
        return math.prod(statistic.scale for statistic in self.statistics)

    def add(self, shard: Array) -> None:
        """Take in this rank's shard of a bucket, which may be empty."""
        for statistic, sums in zip(self.statistics, self.each, strict=True):
            sums += statistic.sums(shard)

    def __call__(self) -> None:
        self.plan()
        factors = [statistic.factor(sums.copy()) for statistic, sums in zip(self.statistics, self.each, strict=True)]
        self.sums[...] = 0
        self.factor = None if None in factors else math.prod(factor for factor in factors if factor is not None)

    def free(self) -> None:
        self.plan.free()
