"""What an iteration costs: what the virtual fabric is told of compute, updates and messages;
and what schedules may foresee: the times of layers and collectives, and the order that follows from them.

    backward   | 3 | 2 | 1 | 0 | forward: 0 needs bucket 0 first, then 1, ...
    network    | L | RS 3 | RS 2 | RS 1 | RS 0 | AG 0 | AG 1 | ...      one at a time; RS b before AG b

List scheduling: whenever the network is free, the most urgent of what is ready goes next; it never idles while anything
is ready. It finishes each collective, or each portion if collectives may be broken off.

The sum of the loss (L) is the least urgent. It still goes first, because it is ready before any bucket, and all buckets
of the iteration before have been waited for. The exchanges of layers are not foreseen.

Source: Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.training.fabric.order import Key
from dear_mpi.training.line.bucket import Bucket, Cut, cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.routes.legs import Collective
from dear_mpi.training.routes.route import Route

Price: TypeAlias = Callable[[Collective, Bucket], float]
# How many times as long as usual a use of a layer takes, on all ranks or on each. Passes, forward and backward, count
# from 0; the place in one is twice the number of the use forward, and one more backward.
Noise: TypeAlias = Callable[[int, int], Any]


def alike(seconds: Any) -> Any:
    """All ranks take what is nominal."""
    return seconds


def steady(number: int, place: int) -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an iteration takes, in seconds; without any costs nothing takes time."""

    forward_s: Sequence[float] = ()  # of each use of a layer, in the order of the forward pass; of a part of a batch
    backward_s: Sequence[float] = ()
    weights_s: Mapping[int, float] = field(default_factory=dict)  # of uses whose backward has a second half
    exchange_s: Mapping[int, float] = field(default_factory=dict)  # of what a use exchanges before each pass
    price: Price = lambda leg, bucket: 0.0
    parts: int = 1  # into which a batch is split
    loss_s: float = 0.0  # of the sum of the loss
    verdict_s: float = 0.0  # of the verdict on all gradients
    update_s: float = 0.0  # of the optimiser, for each element
    rest_s: float = 0.0  # between forward and backward, for what is no layer
    code_factor: float = 1.0  # how many times as long as its wire says a code takes
    start_s: float = 0.0  # until an engine without work begins
    wake_s: float = 0.0  # until the main thread goes on when what it waits for is over
    ranks: int = 1  # who share an update where each updates its shard
    served: float = 1.0  # the largest share of a bucket that one rank serves between hosts
    ranks_per_core: float = 1.0  # for updates, one after the other; all other seconds are already multiplied by it
    # From the seconds that an update takes alone to its stall, the seconds by which each of them delays messages beside
    # it, and its stretch, how many times as long it takes then. None: neither delays the other.
    contention: Callable[[float], tuple[float, float]] | None = None
    layer_stall: float = 0.0  # by how many seconds a second of a layer delays messages beside it
    # From a bucket to what its update takes, and those of its shards, in elements. None: all shards are equal.
    work: Callable[[Bucket], tuple[float, Any]] | None = None
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1  # into which a collective can be broken
    compute: Callable[[Any], Any] = alike  # from nominal seconds to those on each rank
    noise: Noise = steady

    def work_of(self, bucket: Bucket) -> tuple[float, Any]:
        return (float(bucket.count), bucket.count / self.ranks) if self.work is None else self.work(bucket)

    def update_seconds(self, elements: Any) -> Any:
        """What an update of so many elements takes, on all ranks or on each; those with few wait for who has many."""
        if self.ranks_per_core > 1:
            shared = self.ranks_per_core * np.mean(elements)
            elements = shared if np.ndim(elements) == 0 else np.maximum(elements, shared)
        return self.update_s * elements


PORTION_BYTES = 2 << 20  # 1.7 ms at 10 Gbit/s, for which something urgent may wait
MOST_PORTIONS = 1024  # of 2 GiB: an order is a list, which is tried several times


@dataclass(frozen=True)
class Nominal:
    """What an iteration is expected to take; see ``Costs`` for what stands there, too."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    price: Callable[[str, Bucket], float]  # seconds that the engine takes for a collective, updates and codes included
    judged: bool = False  # whether all gradients are looked at before any of them is used
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1
    weights_s: Mapping[int, float] = field(default_factory=dict)
    exchange_s: Mapping[int, float] = field(default_factory=dict)
    loss_s: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Collectives of a bucket, one after the other."""

    keys: tuple[Key, ...]
    seconds: tuple[float, ...]  # of each of the keys
    ready_s: float  # when the first of them can begin
    urgency: int  # the smallest goes first


def portions_of(nbytes: int, ranks: int, segment_bytes: int) -> int:
    """Into how many portions a collective of so many bytes is broken at most: each has a segment of every chunk.

    >>> portions_of(PORTION_BYTES, 2, 1024), portions_of(PORTION_BYTES + 1, 2, 1024), portions_of(1 << 24, 64, 1 << 18)
    (1, 2, 1)
    """
    return max(1, min(-(-nbytes // PORTION_BYTES), -(-nbytes // (ranks * segment_bytes)), MOST_PORTIONS))


def chains_of(
    buckets: Iterable[Bucket], collectives: Sequence[str], nominal: Nominal, *, broken: bool = False
) -> list[Chain]:
    """These collectives of each bucket, ready when its gradients are; the sooner it is needed, the more urgent.

    If they may be ``broken``, their portions stand one after the other.
    """
    ready_s = list(accumulate(reversed(nominal.backward_s)))[::-1]  # when each use has run backward
    found = []
    for bucket in buckets:
        counts = [nominal.portions(each, bucket) if broken else 1 for each in collectives]
        parts = [(each, count) for each, count in zip(collectives, counts, strict=True) for _ in range(count)]
        keys = tuple((each, bucket.index) for each, _ in parts)
        seconds = tuple(nominal.price(each, bucket) / count for each, count in parts)
        found.append(Chain(keys, seconds, ready_s[bucket.uses[0]], urgency=bucket.uses[0]))
    return found


def list_scheduled(chains: Iterable[Chain], *, loss_s: float = 0.0, committed: int = 1) -> list[Key]:
    """The order in which one network carries chains out, after the sum of the loss.

    ``committed`` collectives, the loss included, are handed over ahead, and cannot be overtaken any more: 1 is the one
    that runs.

    >>> late = Chain((("reduce_scatter", 1), ("all_gather", 1)), (3.0, 3.0), 0.0, urgency=1)
    >>> urgent = Chain((("reduce_scatter", 0), ("all_gather", 0)), (1.0, 1.0), 2.0, urgency=0)
    >>> [f"{collective} {bucket}" for collective, bucket in list_scheduled([late, urgent])]
    ['reduce_scatter 1', 'reduce_scatter 0', 'all_gather 0', 'all_gather 1']
    """
    coming = [(chain.ready_s, chain.urgency, number, chain, 0) for number, chain in enumerate(chains)]
    heapify(coming)
    ready: list[tuple[int, int, Chain, int]] = []
    order: list[Key] = []
    ends = [0.0, loss_s]  # of what was handed over
    while coming or ready:
        now_s = ends[-committed] if len(ends) >= committed else 0.0  # when there is room for one more
        if not ready:
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            _, urgency, number, chain, part = heappop(coming)
            heappush(ready, (urgency, number, chain, part))
        _, number, chain, part = heappop(ready)
        order.append(chain.keys[part])
        ends.append(max(ends[-1], now_s) + chain.seconds[part])
        if part + 1 < len(chain.keys):
            heappush(coming, (ends[-1], chain.urgency, number, chain, part + 1))
    return order


@dataclass(frozen=True)
class WireCost:
    """Seconds of a collective: a line through two sizes that were timed or modelled.

    It prices buckets that have no plan yet: for fusion, and for orders that are decided in advance.
    """

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
