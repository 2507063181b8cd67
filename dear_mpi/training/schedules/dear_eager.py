"""dear-eager: never idle the network while a collective is ready, and send the most urgent one first.

    compute  | backward 5 4 3 2 1 0              | forward 0 1 2 3 4 5        |     max(t_ff + t_bp, t_rs + t_ag)
    network  | RS 5 | RS 4 | RS 3 | RS 1 | RS 0 | AG 0 | AG 1 | RS 2 | AG 2 | ...
                                    ^ bucket 2 gives way, and goes on under the forward pass

DeAR gathers after the last reduce-scatter. If communication takes longer than backward, the network then still reduces
late layers while the first layers of the forward pass wait. Here both halves of the first buckets overtake them. List
scheduling decides the order once, from measured times of the first iterations (``fabric/costs.py``), equal on all
ranks. Before that, and if clipping or loss scaling must see all gradients first, gathers come last, as in DeAR.

A collective above 2 MiB may be broken off for a more urgent one. List scheduling is a heuristic: the virtual fabric
compares an order with breaks, one without, and DeAR's. The bound is the one for all synchronous schedules. There is no
gain over DeAR if backward hides all reduce-scatters and forward all all-gathers.

Source: ours; priorities as in ByteScheduler (Peng et al., SOSP 2019), halves as in DeAR.
"""

from collections.abc import Sequence

from dear_mpi.training.fabric import Fabric
from dear_mpi.training.fabric.costs import Nominal, chains_of, list_scheduled
from dear_mpi.training.fabric.order import Key, Sequenced, turns_of
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.schedule import CollectiveSeconds


class DearEager(Dear):
    """Reduce-scatter and all-gather as early as possible, in the order of need."""

    fusion = "cut:4MB"
    foresees = True

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return max(ff + bp, network["reduce_scatter"] + network["all_gather"])

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.gathers = [("all_gather", bucket.index) for bucket in fabric.buckets]  # by need
        self.order = [*(("reduce_scatter", index) for _, index in reversed(self.gathers)), *self.gathers]  # DeAR's

    def ordered(self, nominal: Nominal, *, broken: bool = False) -> Sequence[Key]:
        first = ["reduce_scatter"] if nominal.judged else self.collectives
        order = list_scheduled(chains_of(self.fabric.buckets, first, nominal, broken=broken), loss_s=nominal.loss_s)
        return [*order, *self.gathers] if nominal.judged else order

    def orders(self, nominal: Nominal) -> Sequence[Sequenced]:
        return [self.order or (), self.ordered(nominal), turns_of(self.ordered(nominal, broken=True))]

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start("reduce_scatter", bucket)
            self.under_way[bucket] = self.fabric.start("all_gather", bucket)

    def end_backward(self) -> None:
        """Start nothing: all gathers have started."""
