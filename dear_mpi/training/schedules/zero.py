"""ZeRO, stages 1 and 2: reduce-scatter during backward, update each rank's shard, then gather all.

    compute  | forward | backward 3 2 1 0      |                       | forward ...
    network            |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |         t_ff + max(t_bp, t_rs) + t_ag

The step ends with the gathers, and the next forward waits for all of them. With ``zero:overlap_param_gather=yes``
gathers run during forward, one at a time: the hook of a bucket's first layer waits for it and starts the next, as in
Megatron-Core's distributed optimiser.

With ``--update sharded`` values are gathered and each rank keeps its shard's optimiser state, as in ZeRO; with whole
updates gradients are gathered, with the same bytes and times.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5; DeepSpeed, deepspeed.runtime.zero: reduce_bucket_size 5e8
elements, which is one bucket for most models; Megatron-Core, DistributedDataParallel: max(40e6, 1e6 x ranks)
parameters. The fusion has these sizes for fp32 and at most 40 ranks.
"""

from collections import deque
from typing import Any, ClassVar

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Halved, Options, Schedule, yes_or_no


class Zero(Halved):
    """Reduce-scatter during the backward pass; all-gather after it or in the next forward pass."""

    fusion = "2000MB"
    options: ClassVar[Options] = {"overlap_param_gather": yes_or_no}
    overlap_param_gather = False

    @classmethod
    def specialised(cls, **options: Any) -> type[Schedule]:
        if options.get("overlap_param_gather"):
            options = {"fusion": "160MB", **options}
        return super().specialised(**options)

    @classmethod
    def bound(cls, ff: float, bp: float, network: CollectiveSeconds) -> float:
        if cls.overlap_param_gather:
            return Dear.bound(ff, bp, network)  # for the same reason
        return ff + max(bp, network["reduce_scatter"]) + network["all_gather"]

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.ahead = 1 if self.overlap_param_gather else len(fabric.buckets)  # gathers under way
        self.missing = deque[Bucket]()  # in the order of need, which is the order of the line
        self.gathering = deque[tuple[Bucket, Handle]]()

    def end_backward(self) -> None:
        self.missing.extend(self.fabric.buckets)
        self.gather()
        if not self.overlap_param_gather:
            self.flush()

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            while self.gathering and self.gathering[0][0].index <= bucket.index:
                self.finish()

    def gather(self) -> None:
        while self.missing and len(self.gathering) < self.ahead:
            bucket = self.missing.popleft()
            self.gathering.append((bucket, self.fabric.start("all_gather", bucket)))

    def finish(self) -> None:
        bucket, handle = self.gathering.popleft()
        self.fabric.wait(handle)
        self.gather()
        self.fabric.update(bucket)

    def flush(self) -> None:
        while self.gathering:
            self.finish()
