"""FSDP, or ZeRO stage 3: gather parameters before forward and before backward, and reduce-scatter gradients.

    compute  | forward 0 1 2 3        | backward 3 2 1 0             | ...
    network  | AG 0 | AG 1 | AG 2 | AG 3 | AG 3 | AG 2 | RS 3 | AG 1 | RS 2 | ...
                                               max(max(t_ff, t_ag) + max(t_bp, t_ag), 2 t_ag + t_rs)

A rank keeps only its shard's parameters and frees gathered ones after the layer: 1.5 times the bytes of an all-reduce.
The next unit is gathered while the previous one computes, one ahead, as with BACKWARD_PRE.

This schedule sends FSDP's messages at FSDP's times, but never frees memory: it needs as much as other schedules. Its
unit is the bucket. With ``--accumulate`` FSDP gathers for each part of a batch, unless it keeps parameters; here only
the first forward and the last backward gather.

Source: Zhao et al., PyTorch FSDP, VLDB 2023, section 3; torch.distributed.fsdp.FullyShardedDataParallel.
"""

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Halved


class Fsdp(Halved):
    """All-gather during both passes, reduce-scatter during the backward pass."""

    extras = ("second all_gather",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """Return the bound: each pass begins and awaits its gathers.

        Reduce-scatters may continue under the next forward's layers without trained parameters.
        """
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(max(ff, gathered) + max(bp, gathered), 2 * gathered + reduced)

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.new = len(fabric.buckets)  # buckets from the first with new values: the line is in the order of need
        self.gathering: dict[Bucket, Handle] = {}  # new values
        self.gathering_again: dict[Bucket, Handle] = {}  # values that FSDP has freed
        self.held: set[Bucket] = set()  # buckets with gathered or arriving values, in the backward pass

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.gather_up_to(bucket.index)

    def gather_up_to(self, index: int) -> None:
        """Update buckets up to this one, and start gathering the next."""
        buckets = self.fabric.buckets
        while self.new <= index:
            self.gather(self.new)
            self.gather(self.new + 1)
            bucket = buckets[self.new]
            self.fabric.wait(self.gathering.pop(bucket))
            self.fabric.update(bucket)
            self.new += 1

    def gather(self, index: int) -> None:
        """Start a bucket's all-gather, unless under way or past the end."""
        buckets = self.fabric.buckets
        if index < len(buckets) and buckets[index] not in self.gathering:
            self.gathering[buckets[index]] = self.fabric.start("all_gather", buckets[index])

    def before_backward(self, use: int) -> None:
        for bucket in reversed(self.fabric.buckets.needed_by(use)):
            self.gather_again(bucket.index)
            self.gather_again(bucket.index - 1)
            if (handle := self.gathering_again.pop(bucket, None)) is not None:
                self.fabric.wait(handle)

    def gather_again(self, index: int) -> None:
        """Start a bucket's second all-gather, unless started or before the beginning."""
        if index >= 0 and self.fabric.buckets[index] not in self.held:
            bucket = self.fabric.buckets[index]
            self.held.add(bucket)
            self.gathering_again[bucket] = self.fabric.start_extra("second all_gather", bucket)

    def end_backward(self) -> None:
        self.held.clear()
        self.new = 0

    def flush(self) -> None:
        self.gather_up_to(len(self.fabric.buckets) - 1)
