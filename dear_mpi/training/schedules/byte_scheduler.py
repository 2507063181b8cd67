"""ByteScheduler over all-reduce: send partitions of tensors by priority, and await them per layer in the next pass.

    compute  | backward 3 2 1 0      | forward 0 1 2 3     | ...              max(t_ff + t_bp, t_ar)
    network  |   AR 3 | AR 3' | AR 1 | AR 0 | AR 2 | ...

The next forward pass sets priorities. ``credit`` partitions are handed over ahead and cannot be overtaken. A layer
waits only for its partitions. The bound is the one for all synchronous schedules; start-up latency keeps the schedule
above it, because each partition is a whole all-reduce, needed in full.

The original decides at run time on rank 0 and sends the order by Horovod's negotiation. Here measured times decide
once. We omit the negotiation, in favour of this peer.

Source: Peng et al., ByteScheduler, SOSP 2019; github.com/bytedance/byteps, branch bytescheduler: partitions of
1,000,000 elements, a credit of 4,000,000 (BYTESCHEDULER_PARTITION, BYTESCHEDULER_CREDIT).
"""

from collections.abc import Sequence
from typing import ClassVar

from dear_mpi.reporting.units import above_zero
from dear_mpi.training.fabric.costs import Nominal, chains_of, list_scheduled
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Late, Options


class ByteScheduler(Late):
    """All-reduce by priority, during the backward pass and the next forward pass."""

    collectives = ("all_reduce",)
    fusion = "cut:4MB"
    foresees = True
    options: ClassVar[Options] = {"credit": above_zero}
    credit = 4  # partitions handed over ahead

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return max(ff + bp, network["all_reduce"])

    def ordered(self, nominal: Nominal) -> Sequence[Key]:
        chains = chains_of(self.fabric.buckets, self.collectives, nominal)
        return list_scheduled(chains, loss_s=nominal.loss_s, committed=self.credit)

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.under_way[bucket] = self.fabric.start("all_reduce", bucket)
