"""Price an iteration for the virtual fabric, and for the lookahead of schedules, which order it by list scheduling:

    backward   | 3 | 2 | 1 | 0 | forward: 0 needs bucket 0 first, then 1, ...
    network    | L | RS 3 | RS 2 | RS 1 | RS 0 | AG 0 | AG 1 | ...      one at a time; RS b before AG b

When the network is free, the most urgent ready collective (or portion) goes next, to its end. The network never idles
while one is ready. The loss sum (L) goes first.

Source: Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.training.buckets.layout import Bucket, Cut, Layout, cut
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import Collective

Price: TypeAlias = Callable[[Collective, Bucket], float]
# Slowdown of a layer call, on all ranks or on each, by pass (forward and backward, from 0) and place in it:
# 2 x call forward and 2 x call + 1 backward.
Noise: TypeAlias = Callable[[int, int], Any]


def alike(seconds: Any) -> Any:
    return seconds


def steady(number: int, place: int) -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """List the costs of an iteration, in seconds; default: free."""

    forward_s: Sequence[float] = ()  # of each layer call, for one part of a batch
    backward_s: Sequence[float] = ()
    weights_s: Mapping[int, float] = field(default_factory=dict)  # of layer calls with a second half of backward
    exchange_s: Mapping[int, float] = field(default_factory=dict)  # of a layer call's exchange before each pass
    price: Price = lambda stage, bucket: 0.0
    parts: int = 1  # into which a batch is split
    loss_s: float = 0.0
    verdict_s: float = 0.0  # of the global gradient check
    update_s: float = 0.0  # of the optimiser, per element
    rest_s: float = 0.0  # between forward and backward, outside layers
    code_factor: float = 1.0  # slowdown of codes against their wire's figures
    start_s: float = 0.0  # until an idle engine starts
    wake_s: float = 0.0  # until the main thread resumes after a wait
    ranks: int = 1  # ranks that share a sharded update
    served: float = 1.0  # largest share of a bucket, of one rank, between hosts
    ranks_per_core: float = 1.0  # for updates, one after the other; other seconds include it
    # Update work of a bucket and of its shards, in elements. None: equal shards.
    work: Callable[[Bucket], tuple[float, Any]] | None = None
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1  # into which a collective can be broken
    compute: Callable[[Any], Any] = alike  # from nominal to each rank's
    noise: Noise = steady

    def work_of(self, bucket: Bucket) -> tuple[float, Any]:
        return (float(bucket.count), bucket.count / self.ranks) if self.work is None else self.work(bucket)

    def update_seconds(self, elements: Any) -> Any:
        """Return the seconds to update these elements; ranks that share a core wait for each other."""
        if self.ranks_per_core > 1:
            shared = self.ranks_per_core * np.mean(elements)
            elements = shared if np.ndim(elements) == 0 else np.maximum(elements, shared)
        return self.update_s * elements


PORTION_BYTES = 2 << 20  # 1.7 ms at 10 Gbit/s: the longest wait of an urgent collective
MOST_PORTIONS = 1024  # of 2 GiB: an order, a list, is tried several times


@dataclass(frozen=True)
class Nominal:
    """Hold what a schedule knows when it orders its iteration: costs of ranks of equal speed."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    price: Callable[[str, Bucket], float]  # seconds, with updates and codes
    judged: bool = False  # all gradients are checked before use
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1
    weights_s: Mapping[int, float] = field(default_factory=dict)
    exchange_s: Mapping[int, float] = field(default_factory=dict)
    loss_s: float = 0.0


@dataclass(frozen=True)
class Chain:
    keys: tuple[Key, ...]
    seconds: tuple[float, ...]  # by key
    ready_s: float  # when the first can begin
    urgency: int  # smallest first


def portions_of(nbytes: int, ranks: int, segment_bytes: int) -> int:
    """Return the most portions of a collective: each has a segment of every chunk.

    >>> portions_of(PORTION_BYTES, 2, 1024), portions_of(PORTION_BYTES + 1, 2, 1024), portions_of(1 << 24, 64, 1 << 18)
    (1, 2, 1)
    """
    return max(1, min(-(-nbytes // PORTION_BYTES), -(-nbytes // (ranks * segment_bytes)), MOST_PORTIONS))


def chains_of(
    buckets: Iterable[Bucket], collectives: Sequence[str], nominal: Nominal, *, broken: bool = False
) -> list[Chain]:
    """Chain these collectives (or portions) of each bucket, ready with its gradients; urgent if needed soon."""
    ready_s = list(accumulate(reversed(nominal.backward_s)))[::-1]  # when each layer call has run backward
    found = []
    for bucket in buckets:
        counts = [nominal.portions(each, bucket) if broken else 1 for each in collectives]
        parts = [(each, count) for each, count in zip(collectives, counts, strict=True) for _ in range(count)]
        keys = tuple((each, bucket.index) for each, _ in parts)
        seconds = tuple(nominal.price(each, bucket) / count for each, count in parts)
        found.append(Chain(keys, seconds, ready_s[bucket.calls[0]], urgency=bucket.calls[0]))
    return found


def list_scheduled(chains: Iterable[Chain], *, loss_s: float = 0.0, committed: int = 1) -> list[Key]:
    """Order chains on one network, after the loss sum.

    ``committed`` collectives, the loss and the running one included, cannot be overtaken.

    >>> late = Chain((("reduce_scatter", 1), ("all_gather", 1)), (3.0, 3.0), 0.0, urgency=1)

    >>> urgent = Chain((("reduce_scatter", 0), ("all_gather", 0)), (1.0, 1.0), 2.0, urgency=0)
    >>> [f"{collective} {bucket}" for collective, bucket in list_scheduled([late, urgent])]
    ['reduce_scatter 1', 'reduce_scatter 0', 'all_gather 0', 'all_gather 1']
    """
    coming = [(chain.ready_s, chain.urgency, number, chain, 0) for number, chain in enumerate(chains)]
    heapify(coming)
    ready: list[tuple[int, int, Chain, int]] = []
    order: list[Key] = []
    ends = [0.0, loss_s]
    while coming or ready:
        now_s = ends[-committed] if len(ends) >= committed else 0.0  # room for one more
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
    """Price a collective linearly in bytes, for buckets without plans."""

    alpha: float  # s of an empty collective
    beta: float  # s per byte of the buffer

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> "WireCost":
        """Fit two pairs of bytes and seconds, without negative coefficients.

        >>> WireCost.through((100, 2.0), (300, 4.0))
        WireCost(alpha=1.0, beta=0.01)
        """
        beta = max(0.0, (large[1] - small[1]) / max(1, large[0] - small[0]))
        return cls(max(0.0, small[1] - beta * small[0]), beta)

    def __call__(self, nbytes: float) -> float:
        return self.alpha + self.beta * nbytes


def whole_cost(collectives: Sequence[str], route: Route, layout: Layout, prices: Callable[[Cut], Price]) -> WireCost:
    probe = cut(layout, [layout.grid])
    price = route.priced(prices(probe))
    small, large = ((each.nbytes, sum(price(name, each) for name in collectives)) for each in (probe[0], probe[-1]))
    return WireCost.through(small, large)
