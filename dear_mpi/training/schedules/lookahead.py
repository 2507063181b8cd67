"""Order the collectives of an iteration by list scheduling, for schedules that know what layers and collectives take:

backward   | 3 | 2 | 1 | 0 | forward: 0 needs bucket 0 first, then 1, ...
network    | L | RS 3 | RS 2 | RS 1 | RS 0 | AG 0 | AG 1 | ...      one at a time; RS b before AG b

When the network is free, the most urgent ready collective (or portion) goes next, to its end. The network never idles
while one is ready. The loss sum (L) goes first.

Source: Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate, groupby

from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.training.buckets.layout import Bucket
from dear_mpi.training.fabric.fabric import Key, Turn
from dear_mpi.training.schedules.schedule import Nominal


@dataclass(frozen=True)
class Chain:
    keys: tuple[Key, ...]
    seconds: tuple[float, ...]  # by key
    ready_s: float  # when the first can begin
    urgency: int  # smallest first


def turns_of(keys: Iterable[Key]) -> list[Key | Turn]:
    """Number the portions in an order that repeats a collective for each; merge neighbours.

    >>> turns_of([("reduce_scatter", 1), ("reduce_scatter", 1), ("reduce_scatter", 0), ("reduce_scatter", 1)])[0]
    Turn(collective='reduce_scatter', bucket=1, portion=Portion(first=0, last=2, of=3))
    """
    listed = list(keys)
    of, done = Counter(listed), Counter[Key]()
    found: list[Key | Turn] = []
    for key, group in groupby(listed):
        count, first = len(list(group)), done[key]
        found.append(key if of[key] == count else Turn(*key, Portion(first, first + count, of[key])))
        done[key] += count
    return found


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
