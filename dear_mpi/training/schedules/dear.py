"""DeAR and dear-eager: hide reduce-scatter under backward and all-gather under the next forward.

    compute  | backward 3 2 1 0    | forward 0 1 2 3    | ...         max(t_ff + t_bp, t_ag + max(t_bp, t_rs))
    network  |   reduce-scatter 3 2 1 0 | all-gather 0 1 2 3 |
                  BackPipe                    FeedPipe

    dear-eager sends the most urgent ready collective first:          max(t_ff + t_bp, t_rs + t_ag)
    network  | RS 5 | RS 4 | RS 3 | RS 1 | RS 0 | AG 0 | AG 1 | RS 2 | AG 2 | ...

DeAR sends an all-reduce's bytes and combines chunks in its order: parameters have the same bits.

Source: Zhang et al., DeAR, ICDCS 2023, arXiv 2302.12445. dear-eager is ours; priorities as in ByteScheduler.
"""

from collections.abc import Sequence

from dear_mpi.training.buckets.layout import Bucket
from dear_mpi.training.fabric.fabric import Fabric, Key, Sequenced
from dear_mpi.training.schedules.lookahead import chains_of, list_scheduled, turns_of
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Late, Nominal, Schedule


class BackPipe(Schedule):
    """Start a bucket's reduce-scatter at its last gradient."""

    collectives = ("reduce_scatter", "all_gather")

    def after_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.completed_by(call):
            self.fabric.start("reduce_scatter", bucket)


class FeedPipe(Late):
    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.forward_order: dict[Bucket, None] = {}  # by first call

    def before_forward(self, call: int) -> None:
        for bucket in self.fabric.buckets.needed_by(call):
            self.forward_order.setdefault(bucket)
        super().before_forward(call)

    def end_backward(self) -> None:
        for bucket in self.forward_order:
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)


class Dear(BackPipe, FeedPipe):
    """Reduce-scatter during backward, all-gather during the next forward."""

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """Return the bound: all-gathers begin after backward and all reduce-scatters, and end before forward does.

        The paper's max(ff, ag) + max(bp, rs) includes ff + rs, but layers without parameters run while the network
        reduces.
        """
        gathered, reduced = network["all_gather"], network["reduce_scatter"]
        return max(ff + bp, gathered + max(bp, reduced))


class DearEager(Dear):
    """Let both halves of the first buckets overtake late reduce-scatters.

    List scheduling decides once, from measured times (``schedule.py``): a heuristic, so the virtual fabric compares
    an order with broken-off collectives, one without, and DeAR's. Until then, and if clipping or loss scaling must
    first see all gradients, gathers come last.
    """

    fusion = "cut:4MB"
    foresees = True

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return max(ff + bp, network["reduce_scatter"] + network["all_gather"])

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.gathers = [("all_gather", bucket.index) for bucket in fabric.buckets]
        self.order = [*(("reduce_scatter", index) for _, index in reversed(self.gathers)), *self.gathers]

    def ordered(self, nominal: Nominal, *, broken: bool = False) -> Sequence[Key]:
        first = ["reduce_scatter"] if nominal.judged else self.collectives
        order = list_scheduled(chains_of(self.fabric.buckets, first, nominal, broken=broken), loss_s=nominal.loss_s)
        return [*order, *self.gathers] if nominal.judged else order

    def orders(self, nominal: Nominal) -> Sequence[Sequenced]:
        return [self.order or (), self.ordered(nominal), turns_of(self.ordered(nominal, broken=True))]

    def after_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.completed_by(call):
            self.fabric.start("reduce_scatter", bucket)
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)

    def end_backward(self) -> None:
        """Start nothing: all gathers have started."""
