"""DeAR: all-reduce is decoupled; reduce-scatter hides under backward, all-gather under the next forward.

    compute  | backward 3 2 1 0    | forward 0 1 2 3    | ...         max(t_ff, t_ag) + max(t_bp, t_rs)
    network  |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |
                  BackPipe                    FeedPipe

BackPipe: the reduce-scatter of a bucket starts when its last gradient is ready. FeedPipe: behind the last
reduce-scatter come the all-gathers, in the order in which the forward pass was seen to need its buckets; a layer
waits for its own bucket only, which is then updated, just before the layer runs. The engine runs what it is given
in order, so all-gathers need no barrier: they queue behind the reduce-scatters. No byte more is sent than by an
all-reduce, and as the same chunks are combined in the same order, the parameters have the same bits.

Source: Zhang et al., DeAR, ICDCS 2023, arXiv 2302.12445.
"""

from collections.abc import Mapping
from typing import ClassVar

from dear_mpi.training.bucket import Bucket
from dear_mpi.training.engine import Handle
from dear_mpi.training.exchange import Exchange
from dear_mpi.training.schedules.schedule import Schedule

__all__ = ["Dear"]


class Dear(Schedule):
    """Reduce-scatter during the backward pass, all-gather during the next forward pass."""

    collectives: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")

    @staticmethod
    def bound(ff: float, bp: float, network: Mapping[str, float]) -> float:
        return max(ff, network["all_gather"]) + max(bp, network["reduce_scatter"])

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.forward_order: dict[int, Bucket] = {}  # by index, in the order of first use
        self.gathering: dict[int, Handle] = {}

    def before_forward(self, layer: int) -> None:
        bucket = self.exchange.bucket_of(layer)
        if bucket is not None:
            self.forward_order.setdefault(bucket.index, bucket)
            self.finish(bucket)

    def after_backward(self, layer: int) -> None:
        bucket = self.exchange.completed_by(layer)
        if bucket is not None:
            self.exchange.start("reduce_scatter", bucket)

    def end_backward(self) -> None:
        for bucket in self.forward_order.values():
            self.gathering[bucket.index] = self.exchange.start("all_gather", bucket)

    def finish(self, bucket: Bucket) -> None:
        """Wait for a bucket's all-gather, if it is under way, and update its parameters."""
        handle = self.gathering.pop(bucket.index, None)
        if handle is not None:
            self.exchange.wait(handle)
            bucket.update()

    def flush(self) -> None:
        for bucket in self.forward_order.values():
            self.finish(bucket)
