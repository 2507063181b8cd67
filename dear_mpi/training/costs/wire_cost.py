"""What collectives cost on this job's network: alpha + beta x bytes, from two sizes that were timed or modelled.

That prices buckets which have no plan yet: for fusion, and for orders that are decided in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.pack_plan import round_up
from dear_mpi.training.costs.plan_cost import plan_s
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.line.bucket import Cut, cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.routes.find import collectives_of, priced
from dear_mpi.training.routes.legs import Collective
from dear_mpi.training.routes.route import Route

SMALL_BYTES, LARGE_BYTES = 16 * 1024, 8 * 1024 * 1024


@dataclass(frozen=True)
class WireCost:
    """Seconds of a collective.

    Attributes:
        alpha: of an empty one, for all its steps together.
        beta: of each byte of the buffer.
    """

    alpha: float
    beta: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> WireCost:
        """The line through two sizes in bytes and their seconds; nothing on it is below zero.

        >>> WireCost.through((100, 2.0), (300, 4.0))
        WireCost(alpha=1.0, beta=0.01)
        """
        beta = max(0.0, (large[1] - small[1]) / max(1, large[0] - small[0]))
        return cls(max(0.0, small[1] - beta * small[0]), beta)

    def __call__(self, nbytes: float) -> float:
        return self.alpha + self.beta * nbytes


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


def whole_cost(
    collectives: Sequence[str], route: Route, layout: Layout, itemsize: int, prices: Callable[[Cut], Price]
) -> WireCost:
    """What all these collectives cost together on a route, of a bucket: the line through a small one and a large one.

    Args:
        itemsize: bytes of an element on the wire.
        prices: gives the price of the collectives of these buckets.
    """
    probe = cut(layout, [layout.grid], itemsize)
    price = priced(route, prices(probe))
    small, large = ((each.nbytes, sum(price(name, each) for name in collectives)) for each in (probe[0], probe[-1]))
    return WireCost.through(small, large)
