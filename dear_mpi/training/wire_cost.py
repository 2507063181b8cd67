"""What a collective costs on this job's network: alpha + beta x bytes, from two sizes that were timed or modelled.

It prices buckets that have no plan yet, for fusion and for orders that are decided in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.pack_plan import round_up
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.plan_cost import emulated_network, plan_costs

__all__ = ["WireCost", "price_of", "wire_costs"]

SMALL_BYTES, LARGE_BYTES = 16 * 1024, 8 * 1024 * 1024
REPEATS = 5


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


def price_of(costs: dict[str, WireCost]) -> Callable[[str, Bucket], float]:
    """The price of a collective of a bucket."""
    return lambda collective, bucket: costs[collective](bucket.nbytes)


def wire_costs(fabric: LiveFabric, collectives: Iterable[str], *, timed: bool = False) -> dict[str, WireCost]:
    """Collective: the same on all ranks. To be called while nothing is under way; it overwrites gradients.

    On an emulated link the cost model says it, elsewhere the best of a few runs does, each as long as its slowest rank;
    on any link, if they are to be ``timed``.
    """
    grid = fabric.arena.layout.grid
    itemsize, count = fabric.arena.wire.itemsize, fabric.arena.wire.size
    sizes = [min(round_up(nbytes // itemsize, grid), count) for nbytes in (SMALL_BYTES, LARGE_BYTES)]
    seconds = modelled_s if fabric.world.link is not None and not timed else timed_s
    found = {}
    for collective in collectives:
        small, large = ((size * itemsize, seconds(fabric, collective, size)) for size in sizes)
        alike = small[0] == large[0]
        found[collective] = WireCost(0.0, large[1] / large[0]) if alike else WireCost.through(small, large)
    return found


def modelled_s(fabric: LiveFabric, collective: str, count: int) -> float:
    """By the cost model, on the emulated link."""
    with make_plan(collective, fabric.arena.wire[:count], fabric.world.transport, **fabric.options) as plan:
        (found,) = plan_costs([plan], emulated_network(fabric.world))
        return found.time_s


def timed_s(fabric: LiveFabric, collective: str, count: int) -> float:
    """The best of a few runs."""
    transport, x = fabric.world.transport, fabric.arena.wire[:count]
    with make_plan(collective, x, transport, **fabric.options) as plan:
        best_s = float("inf")
        for _ in range(REPEATS):
            transport.gather_values(None)
            begin = fabric.now()
            plan()
            best_s = min(best_s, max(transport.gather_values(fabric.seconds(begin, fabric.now()))))
    x.view("u1")[...] = 0
    return best_s
