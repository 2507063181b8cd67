"""DeAR: all-reduce is decoupled; reduce-scatter hides under backward, all-gather under the next forward.

    compute  | backward 3 2 1 0    | forward 0 1 2 3    | ...         max(t_ff + t_bp, t_ag + max(t_bp, t_rs))
    network  |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |
                  BackPipe                    FeedPipe

BackPipe: the reduce-scatter of a bucket starts when its last gradient is ready. FeedPipe: after the last reduce-scatter
come the all-gathers, in the order in which the forward pass was seen to need its buckets. A layer waits for its own
bucket only, which is then updated, just before the layer runs. The engine runs what it is given in order, so
all-gathers need no barrier: they queue after the reduce-scatters. No byte more is sent than by an all-reduce, and as
the same chunks are combined in the same order, the parameters have the same bits.

Source: Zhang et al., DeAR, ICDCS 2023, arXiv 2302.12445.
"""

from dear_mpi.training.fabric import Fabric
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Halved, Late


class Dear(Halved, Late):
    """Reduce-scatter during the backward pass, all-gather during the next forward pass."""

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """All-gathers begin after the backward pass and all reduce-scatters, and end before the forward pass does.

        The paper has max(ff, ag) + max(bp, rs), which also says ff + rs. That does not hold where the first layers have
        no trained parameters: these run forward while the network reduces. Both are equal unless ff > ag and rs > bp.
        """
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(ff + bp, gathered + max(bp, reduced))

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.forward_order: dict[Bucket, None] = {}  # in the order of first use

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.forward_order.setdefault(bucket)
        super().before_forward(use)

    def end_backward(self) -> None:
        for bucket in self.forward_order:
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)
