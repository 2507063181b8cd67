"""What collectives cost on this job's network, timed or modelled at two sizes."""

from __future__ import annotations

from collections.abc import Iterable

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.costs.plan_cost import plan_s
from dear_mpi.training.costs.wire_cost import WireCost
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.routes.find import collectives_of
from dear_mpi.training.routes.legs import Collective

SMALL_BYTES, LARGE_BYTES = 16 * 1024, 8 * 1024 * 1024


class WirePrices:
    """Prices of buckets on the network of a job. What a collective costs is asked for once.

    Args:
        fabric: which says what a schedule's collective is carried out by, and in which type it travels.
        timed: time collectives on an emulated link, too; otherwise the cost model says it there. Elsewhere they are
            timed always: the best of a few runs, each as long as its slowest rank.
    """

    def __init__(self, fabric: LiveFabric, *, timed: bool = False) -> None:
        self.fabric, self.timed = fabric, timed
        self.costs: dict[Collective, WireCost] = {}

    def of(self, names: Iterable[str]) -> Price:
        """Collective: prices of what carries these collectives and extras out; there must be plans. Alike on all ranks.

        To be called while nothing is under way, because it overwrites gradients.
        """
        fabric = self.fabric
        for leg in dict.fromkeys(leg for name in names for leg in collectives_of(fabric.route, name)):
            if leg not in self.costs:
                self.costs[leg] = self.cost(leg)
        return lambda leg, bucket: self.costs[leg](fabric.arena.nbytes_of(leg.line, bucket.count, fabric.route))

    def cost(self, leg: Collective) -> WireCost:
        """Collective: what one collective costs."""
        wire, grid = self.fabric.arena.wire, self.fabric.arena.layout.grid
        if leg.few:
            return WireCost(self.seconds(leg, grid), 0.0)
        sizes = [min(round_up(nbytes // wire.itemsize, grid), wire.size) for nbytes in (SMALL_BYTES, LARGE_BYTES)]
        small, large = ((size * wire.itemsize, self.seconds(leg, size)) for size in sizes)
        return WireCost(0.0, large[1] / large[0]) if small[0] == large[0] else WireCost.through(small, large)

    def seconds(self, leg: Collective, count: int) -> float:
        """Collective: of so many elements of the wire."""
        fabric = self.fabric
        x, transport = fabric.arena.wire[:count], fabric.world.transport
        with make_plan(leg.name, x, transport, **fabric.options | leg.options) as plan:
            return plan_s(fabric, plan, timed=self.timed)
