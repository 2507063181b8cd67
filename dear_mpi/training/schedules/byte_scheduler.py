"""ByteScheduler over all-reduce: partitions of tensors, the most urgent first, awaited layer by layer in the next pass.

    compute  | backward 3 2 1 0      | forward 0 1 2 3     | ...              max(t_ff + t_bp, t_ar)
    network  |   AR 3 | AR 3' | AR 1 | AR 0 | AR 2 | ...

What the next forward pass needs first has priority; ``credit`` partitions are handed to the wire ahead, where nothing
overtakes them any more. A layer waits for its own partitions. Its bound is that of any synchronous schedule; what keeps
it from that is start-up latency, since each partition is a whole all-reduce, and the forward pass needs all of it.

The original decides on rank 0 at run time, and Horovod's negotiation carries the order to the others. Here it is
decided once, from measured times; the negotiation is left out, in favour of this peer.

Source: Peng et al., ByteScheduler, SOSP 2019; github.com/bytedance/byteps, branch bytescheduler: partitions of
1,000,000 elements, a credit of 4,000,000 (BYTESCHEDULER_PARTITION, BYTESCHEDULER_CREDIT).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.fabric.foresight import Nominal, Task, list_scheduled
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.option import Option, whole
from dear_mpi.training.schedules.schedule import Schedule

__all__ = ["ByteScheduler"]


class ByteScheduler(Schedule):
    """All-reduces by priority, during the backward pass and the next forward pass.

    Attributes:
        credit: how many partitions are handed to the wire ahead.
    """

    collectives: ClassVar[tuple[str, ...]] = ("all_reduce",)
    fusion: ClassVar[str] = "cut:4MB"
    foresees: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Option[Any]]] = {"credit": Option(whole, "partitions on their way at once")}
    credit: ClassVar[int] = 4

    @staticmethod
    def bound(ff: float, bp: float, network: Mapping[str, float]) -> float:
        return max(ff + bp, network["all_reduce"])

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.reducing: dict[Bucket, Handle] = {}

    def ordered(self, nominal: Nominal) -> Sequence[Key]:
        ready_s = nominal.ready_s()
        tasks = [
            Task(
                (("all_reduce", bucket.index),),
                (nominal.price("all_reduce", bucket),),
                ready_s[bucket.uses[0]],
                urgency=bucket.uses[0],
            )
            for bucket in self.fabric.buckets
        ]
        return list_scheduled(tasks, committed=self.credit)

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.finish(bucket)

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.reducing[bucket] = self.fabric.start("all_reduce", bucket)

    def finish(self, bucket: Bucket) -> None:
        """Wait for a bucket's all-reduce, if it is under way, and update its parameters."""
        handle = self.reducing.pop(bucket, None)
        if handle is not None:
            self.fabric.wait(handle)
            self.fabric.update(bucket)

    def flush(self) -> None:
        for bucket in self.fabric.buckets:
            self.finish(bucket)
