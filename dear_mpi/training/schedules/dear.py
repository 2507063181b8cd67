"""DeAR: split all-reduce; hide reduce-scatter under backward and all-gather under the next forward.

    compute  | backward 3 2 1 0    | forward 0 1 2 3    | ...         max(t_ff + t_bp, t_ag + max(t_bp, t_rs))
    network  |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |
                  BackPipe                    FeedPipe

BackPipe: a bucket's reduce-scatter starts with its last gradient. FeedPipe: all-gathers follow the last reduce-scatter,
in the observed order of need. A layer waits only for its bucket, which is updated just before the layer runs. The
engine is first in, first out, so all-gathers need no barrier. DeAR sends as many bytes as an all-reduce and combines
the same chunks in the same order: parameters have the same bits.

Source: Zhang et al., DeAR, ICDCS 2023, arXiv 2302.12445.
"""

from dear_mpi.training.fabric import Fabric
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Halved, Late


class Dear(Halved, Late):
    """Reduce-scatter during the backward pass, all-gather during the next forward pass."""

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """Return the bound: all-gathers begin after backward and all reduce-scatters, and end before forward does.

        The paper's max(ff, ag) + max(bp, rs) includes ff + rs, which is wrong if the first layers have no trained
        parameters: they run forward while the network reduces. The bounds differ only if ff > ag and rs > bp.
        """
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(ff + bp, gathered + max(bp, reduced))

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.forward_order: dict[Bucket, None] = {}  # by first use

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.forward_order.setdefault(bucket)
        super().before_forward(use)

    def end_backward(self) -> None:
        for bucket in self.forward_order:
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)
