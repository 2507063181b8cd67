"""FSDP, or ZeRO stage 3: parameters are gathered before forward, and again before backward; gradients are scattered.

    compute  | forward 0 1 2 3        | backward 3 2 1 0             | ...      max(t_ff, t_ag) + max(t_bp, t_ag + t_rs)
    network  | AG 0 | AG 1 | AG 2 | AG 3 | AG 3 | AG 2 | RS 3 | AG 1 | RS 2 | ...

A rank keeps the parameters of its shard alone, and what it gathers it gives away behind the layer. That costs half as
many bytes again as an all-reduce. The next unit is gathered while the one before it computes: one is under way beside
the one in use, as with BACKWARD_PRE.

Here memory is never given away: this schedule sends what FSDP sends, when FSDP sends it, and needs as much memory as
the others. Its unit is the bucket.

Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3; torch.distributed.fsdp.FullyShardedDataParallel.
"""

from collections.abc import Mapping
from typing import ClassVar

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import Schedule

__all__ = ["Fsdp"]


class Fsdp(Schedule):
    """All-gather during both passes, reduce-scatter during the backward pass."""

    collectives: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")
    extras: ClassVar[tuple[str, ...]] = ("second all_gather",)

    @staticmethod
    def bound(ff: float, bp: float, network: Mapping[str, float]) -> float:
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(ff, gathered) + max(bp, gathered + reduced)

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.in_need = sorted(fabric.buckets, key=lambda bucket: bucket.uses[0])
        self.place = {bucket: number for number, bucket in enumerate(self.in_need)}
        self.fresh = 0  # how many, in the order of need, have been gathered and updated since the last backward pass
        self.whole = True  # whether all values are new: so they are until the first backward pass is over
        self.first: dict[Bucket, Handle] = {}  # gathers of new values
        self.again: dict[Bucket, Handle] = {}  # and of those that were given away
        self.held: set[Bucket] = set()  # in the backward pass

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.gather_up_to(self.place[bucket])

    def gather_up_to(self, place: int) -> None:
        """See that a bucket and those that are needed before it have new values, and that the next one is under way."""
        while not self.whole and self.fresh <= place:
            self.gather(self.fresh)
            self.gather(self.fresh + 1)
            bucket = self.in_need[self.fresh]
            self.fabric.wait(self.first.pop(bucket))
            self.fabric.update(bucket)
            self.fresh += 1
            self.whole = self.fresh == len(self.in_need)

    def gather(self, place: int) -> None:
        """Start the all-gather of a bucket, unless it is under way, or there is none."""
        if place < len(self.in_need) and self.in_need[place] not in self.first:
            bucket = self.in_need[place]
            self.first[bucket] = self.fabric.start("all_gather", bucket)

    def before_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.gather_again(self.place[bucket])
            self.gather_again(self.place[bucket] - 1)
            handle = self.again.pop(bucket, None)
            if handle is not None:
                self.fabric.wait(handle)

    def gather_again(self, place: int) -> None:
        """Start the second all-gather of a bucket, unless it is there, or there is none."""
        if place >= 0 and self.in_need[place] not in self.held:
            bucket = self.in_need[place]
            self.held.add(bucket)
            self.again[bucket] = self.fabric.gather_again(bucket)

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start("reduce_scatter", bucket)

    def end_backward(self) -> None:
        self.held.clear()
        self.fresh, self.whole = 0, False

    def flush(self) -> None:
        self.gather_up_to(len(self.in_need) - 1)
