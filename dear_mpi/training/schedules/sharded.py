"""ZeRO and FSDP: peers that reduce-scatter gradients and gather parameters.

zero   | forward | backward 3 2 1 0      |                                      t_ff + max(t_bp, t_rs) + t_ag
       network   |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |
fsdp   | forward 0 1 2 3        | backward 3 2 1 0             | ...
       | AG 0 | AG 1 | AG 2 | AG 3 | AG 3 | AG 2 | RS 3 | AG 1 | RS 2 | ...     1.5 times the bytes
"""

from collections import deque
from typing import Any, ClassVar

from dear_mpi.training.buckets.layout import Bucket
from dear_mpi.training.fabric.fabric import Fabric, Handle
from dear_mpi.training.schedules.dear import BackPipe, Dear
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Options, Schedule, yes_or_no


class Zero(BackPipe):
    """ZeRO, stages 1 and 2: the step ends with the gathers; or they run in the next forward pass, one at a time.

    With ``zero:overlap_param_gather=yes`` a bucket's first layer waits for its gather and starts the next.

    Source: Rajbhandari et al., ZeRO, SC 2020, section 5; DeepSpeed, reduce_bucket_size 5e8 elements; Megatron-Core,
    max(40e6, 1e6 x ranks) parameters. The fusion has these sizes for fp32 and at most 40 ranks.
    """

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
        self.ahead = 1 if self.overlap_param_gather else len(fabric.buckets)
        self.missing = deque[Bucket]()  # in the order of need, which is the buffer's
        self.gathering = deque[tuple[Bucket, Handle]]()

    def end_backward(self) -> None:
        self.missing.extend(self.fabric.buckets)
        self.gather()
        if not self.overlap_param_gather:
            self.flush()

    def before_forward(self, call: int) -> None:
        for bucket in self.fabric.buckets.needed_by(call):
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


class Fsdp(BackPipe):
    """FSDP, or ZeRO stage 3: gather parameters before forward and before backward, one bucket ahead (BACKWARD_PRE).

    It sends FSDP's messages at FSDP's times, but frees no memory. With ``--accumulate`` only the first forward and the
    last backward gather.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3; torch.distributed.fsdp.FullyShardedDataParallel.
    """

    extras = ("second all_gather",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        # Reduce-scatters may run on under forward layers without parameters.
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(max(ff, gathered) + max(bp, gathered), 2 * gathered + reduced)

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.new = len(fabric.buckets)  # buckets from this one on have new values
        self.gathering: dict[Bucket, Handle] = {}  # new values
        self.gathering_again: dict[Bucket, Handle] = {}  # values freed by FSDP
        self.held: set[Bucket] = set()  # buckets with gathered or arriving values, in backward

    def before_forward(self, call: int) -> None:
        for bucket in self.fabric.buckets.needed_by(call):
            self.gather_up_to(bucket.index)

    def gather_up_to(self, index: int) -> None:
        while self.new <= index:
            for bucket in self.fabric.buckets[self.new : self.new + 2]:
                if bucket not in self.gathering:
                    self.gathering[bucket] = self.fabric.start("all_gather", bucket)
            bucket = self.fabric.buckets[self.new]
            self.fabric.wait(self.gathering.pop(bucket))
            self.fabric.update(bucket)
            self.new += 1

    def before_backward(self, call: int) -> None:
        for bucket in reversed(self.fabric.buckets.needed_by(call)):
            self.gather_again(bucket)
            if (handle := self.gathering_again.pop(bucket, None)) is not None:
                self.fabric.wait(handle)

    def gather_again(self, last: Bucket) -> None:
        """Start the second all-gather of a bucket and of the one before it, unless started."""
        for bucket in self.fabric.buckets[max(0, last.index - 1) : last.index + 1][::-1]:
            if bucket not in self.held:
                self.held.add(bucket)
                self.gathering_again[bucket] = self.fabric.start_extra("second all_gather", bucket)

    def end_backward(self) -> None:
        self.held.clear()
        self.new = 0

    def flush(self) -> None:
        self.gather_up_to(len(self.fabric.buckets) - 1)
