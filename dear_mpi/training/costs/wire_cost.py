"""What collectives cost on this job's network: alpha + beta x bytes, from two sizes that were timed or modelled.

That prices buckets which have no plan yet: for fusion, and for orders that are decided in advance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dear_mpi.training.fabric.costs import Price
from dear_mpi.training.line.bucket import Cut, cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.routes.route import Route


@dataclass(frozen=True)
class WireCost:
    """Seconds of a collective."""

    alpha: float  # of an empty one, for all its steps together
    beta: float  # of each byte of the buffer

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> "WireCost":
        """The line through two sizes in bytes and their seconds; nothing on it is below zero.

        >>> WireCost.through((100, 2.0), (300, 4.0))
        WireCost(alpha=1.0, beta=0.01)
        """
        beta = max(0.0, (large[1] - small[1]) / max(1, large[0] - small[0]))
        return cls(max(0.0, small[1] - beta * small[0]), beta)

    def __call__(self, nbytes: float) -> float:
        return self.alpha + self.beta * nbytes


def whole_cost(collectives: Sequence[str], route: Route, layout: Layout, prices: Callable[[Cut], Price]) -> WireCost:
    """What all these collectives cost together on a route, of a bucket.

    Args:
        prices: gives the price of the collectives of these buckets.
    """
    probe = cut(layout, [layout.grid])
    price = route.priced(prices(probe))
    small, large = ((each.nbytes, sum(price(name, each) for name in collectives)) for each in (probe[0], probe[-1]))
    return WireCost.through(small, large)
