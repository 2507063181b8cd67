"""Decide which rank updates which part of a bucket: a ``Partition`` for each bucket.

    bucket    | qkv              | out  | expand                | shrink                |
    even      |        0          |        1          |        2         |        3       |    elementwise optimisers
    weights   |     0    |     1    |     2    |                  3, which is faster     |    (rank speeds)
    costs     |        0         |  1   |           2           |           3           |    whole-tensor optimisers

Owners do not depend on the route: full and sharded updates sum along the same chains of ranks, with the same bits. Rank
speeds (``--weights``) also divide the batch; measured ones are in hundredths of the fastest rank's.

Source: Wen et al., PARTEL, arXiv 2003.04544: loads in proportion to speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from dear_mpi.collectives.program.program import Partition
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.reporting.units import decimal
from dear_mpi.training.buckets.layout import Bucket, Cut, Layout

MEASURED = "measured"
Weights: TypeAlias = tuple[float, ...]
STEPS = 100


def parse_weights(text: str) -> Weights | str:
    """Parse comma-separated weights, or ``measured``.

    >>> parse_weights("3,1,1"), parse_weights("measured")
    ((3.0, 1.0, 1.0), 'measured')
    """
    if text == MEASURED:
        return text
    found = [decimal(item) for item in text.split(",")]
    if None in found:
        raise ValueError(f"weights must be numbers with commas between them, or {MEASURED}, not {text!r}")
    return tuple(each for each in found if each is not None)


def check_weights(given: object, ranks: int | None = None) -> None:
    if given is None or given == MEASURED:
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"weights must be a number for each rank, or {MEASURED!r}, not {given!r:.99}")
    Partition.of(0, len(given) if ranks is None else ranks, given)


def known(given: Sequence[float] | str | None, ranks: int) -> Weights | None:
    """Return the initial weights; None if equal, or to be measured."""
    check_weights(given, ranks)
    return None if given is None or isinstance(given, str) or len(set(given)) == 1 else tuple(map(float, given))


def measured(seconds: Sequence[float], examples: Sequence[int]) -> Weights | None:
    """Compute weights from seconds and examples; None if equal. A rank without either counts as fastest.

    >>> measured([1.0, 3.0, 1.5], [8, 8, 4])
    (1.0, 0.33, 0.33)
    """
    speeds = [count / taken if taken else 0.0 for taken, count in zip(seconds, examples, strict=True)]
    most = max(speeds)
    found = tuple(max(1, round(STEPS * (speed / most if speed else 1))) / STEPS for speed in speeds)
    return found if len(set(found)) > 1 else None


@dataclass(frozen=True)
class Owners:
    """Share out buckets between ranks; by default there is one rank.

    Attributes:
        weights: speed of each rank; default: equal.
        costs: update cost of each tensor, if each has one owner.

    >>> shapes = [[(0, (96,)), (1, (96,)), (2, (64,))]]
    >>> elements, tensors = (Layout.of(shapes, itemsize=4, ranks=2, whole=whole) for whole in (False, True))

    >>> bucket = Bucket(0, 0, 256, (0,), 1024)
    >>> cases = (Owners(2), elements), (Owners(2, (3, 1)), elements), (Owners(2, costs=(5, 1, 2)), tensors)
    >>> [owners.partitions(layout, [bucket])[bucket].counts for owners, layout in cases]
    [[128, 128], [192, 64], [96, 160]]
    """

    ranks: int = 1
    weights: Weights | None = None
    costs: tuple[float, ...] | None = None

    @property
    def even(self) -> bool:
        return self.weights is None and self.costs is None

    @property
    def speeds(self) -> Sequence[float]:
        given = self.weights or (1.0,) * self.ranks
        total = sum(given)
        return [weight / total for weight in given]

    def partitions(self, layout: Layout, buckets: Sequence[Bucket]) -> dict[Bucket, Partition]:
        if self.costs is None:
            unit = layout.grid // self.ranks
            shares = {bucket: Partition.of(bucket.count // unit, self.ranks, self.weights) for bucket in buckets}
            return {each: Partition(tuple(unit * border for border in share.borders)) for each, share in shares.items()}
        tensors = {bucket: layout.tensors(*bucket.interval) for bucket in buckets}
        costs = {bucket: [self.costs[tensor] for tensor in own] for bucket, own in tensors.items()}
        found = {}
        for bucket, run in placed(costs, self.speeds).items():  # padding belongs to the tensor before
            begins = [0, *(layout.offsets[tensor] - bucket.start for tensor in tensors[bucket][1:]), bucket.count]
            borders = [begins[done] for done in accumulate(run, initial=0)]
            found[bucket] = Partition((*borders[:-1], bucket.count))
        return {bucket: found[bucket] for bucket in buckets}

    def work(self, layout: Layout, start: int, stop: int) -> float:
        """Return the update cost of an interval, in mean elements of the flat buffer."""
        if self.costs is None:
            return stop - start
        return sum(self.costs[tensor] for tensor in layout.tensors(start, stop)) * layout.count / sum(self.costs)


@dataclass(frozen=True)
class Ownership:
    """Choose owners by the optimiser, if it needs whole tensors, and rank speeds; unmeasured ones count as equal."""

    optimizer: Optimizer | None = None
    weights: Sequence[float] | str | None = None

    @property
    def whole(self) -> bool:
        return self.optimizer is not None and self.optimizer.scope == "tensor"

    def owners(self, ranks: int, costs: Iterable[float]) -> Owners:
        """Return the owners for these update costs; ValueError: wrong weights."""
        return Owners(ranks, known(self.weights, ranks), tuple(costs) if self.whole else None)


class Sharing:
    """Share out the buckets of a cut, with their update costs; others, such as portions, separately.

    A rank packs the optimiser state of its shards (Rajbhandari et al., ZeRO, SC 2020, section 5.1):

        buffer, 3 ranks  | bucket 0          | bucket 1                   |
        a rank's shards  |     |##|     ...  |        |####|        ...   |
        its state        |##|####|

    >>> layout = Layout.of([[("a", (96,)), ("b", (192,))]], itemsize=4, ranks=3)
    >>> buckets = Cut([Bucket(0, 0, 96, (0,), 384), Bucket(1, 96, 288, (0,), 768)])
    >>> sharing = Sharing(Owners(3), layout, buckets, rank=1)
    >>> [(sharing.own(bucket), sharing.state[bucket]) for bucket in buckets]
    [(slice(32, 64, None), slice(0, 32, None)), (slice(160, 224, None), slice(32, 96, None))]
    """

    def __init__(self, owners: Owners, layout: Layout, buckets: Cut, *, rank: int = 0) -> None:
        self.owners, self.layout, self.rank = owners, layout, rank
        self.partitions = owners.partitions(layout, buckets)
        self.others: dict[Bucket, Partition] = {}
        self.found: dict[Bucket, tuple[float, Array]] = {}

    def of(self, bucket: Bucket) -> Partition:
        if bucket in self.partitions:
            return self.partitions[bucket]
        if bucket not in self.others:
            self.others |= self.owners.partitions(self.layout, [bucket])
        return self.others[bucket]

    def shard(self, bucket: Bucket, rank: int) -> slice:
        own = self.of(bucket).shard(rank)
        return slice(bucket.start + own.start, bucket.start + own.stop)

    def own(self, bucket: Bucket) -> slice:
        return self.shard(bucket, self.rank)

    def packed(self, rank: int) -> dict[Bucket, slice]:
        ends = accumulate((partition.counts[rank] for partition in self.partitions.values()), initial=0)
        return {bucket: slice(*place) for bucket, place in zip(self.partitions, pairwise(ends), strict=True)}

    @cached_property
    def state(self) -> dict[Bucket, slice]:
        return self.packed(self.rank)

    def held(self, rank: int) -> int:
        return sum(partition.counts[rank] for partition in self.partitions.values())

    def counts(self, bucket: Bucket) -> tuple[int, ...] | None:
        return None if self.owners.even else tuple(self.of(bucket).counts)

    def longest(self, bucket: Bucket) -> int | None:
        return None if self.owners.even else max(self.of(bucket).counts)

    @property
    def work(self) -> Callable[[Bucket], tuple[float, Array]] | None:
        """Map a bucket to its and each shard's update cost, in mean elements; None if shards are equal."""
        return None if self.owners.even else self.works

    def works(self, bucket: Bucket) -> tuple[float, Array]:
        if bucket not in self.found:
            borders = (bucket.start + border for border in self.of(bucket).borders)
            each = np.array([self.owners.work(self.layout, *span) for span in pairwise(borders)], float)
            self.found[bucket] = float(each.sum()), each
        return self.found[bucket]


HALVINGS = 40
SLACK = 1e-9  # products and quotients are rounded
NEAR = 0.05  # extra time allowed to a bucket if that balances the ranks


def placed(costs: Mapping[Bucket, Sequence[float]], speeds: Sequence[float]) -> dict[Bucket, list[int]]:
    """Count each rank's tensors of each bucket, from update costs and speeds, whose sum is 1.

    All ranks wait for a bucket's costliest run of tensors: minimise it, within 5 %, then the largest load of a rank.
    The costliest bucket comes first (Graham, Bounds on multiprocessing timing anomalies, 1969).
    """
    loads, found = [0.0] * len(speeds), dict[Bucket, list[int]]()
    for bucket in sorted(costs, key=lambda each: -sum(costs[each])):
        own = costs[bucket]
        whole = sum(own) / max(speeds)
        alone, _ = least(own, speeds, [0.0] * len(speeds), whole, whole)
        most = alone + max(load / speed for load, speed in zip(loads, speeds, strict=True) if speed)
        _, found[bucket] = least(own, speeds, loads, alone, most)
        begin = 0
        for rank, count in enumerate(found[bucket]):
            loads[rank] += sum(own[begin : begin + count])
            begin += count
    return found


def least(
    costs: Sequence[float], speeds: Sequence[float], loads: Sequence[float], alone: float, most: float
) -> tuple[float, list[int]]:
    """Find the lowest level of loads, at most ``most``, and each rank's tensor count; first ranks are filled first.

    The bucket's part is at most ``NEAR`` above ``alone``, its own level.
    """

    def fits(level: float) -> list[int] | None:
        found, done = [0] * len(speeds), 0
        for rank, (load, speed) in enumerate(zip(loads, speeds, strict=True)):
            room = min((1 + NEAR) * alone * speed, level * speed - load)
            while done < len(costs) and costs[done] <= room:
                room -= costs[done]
                found[rank] += 1
                done += 1
        return found if done == len(costs) else None

    low, high = 0.0, most * (1 + SLACK)
    best = fits(high)
    assert best is not None, "it fits at the most"
    for _ in range(HALVINGS):
        level = (low + high) / 2
        if (found := fits(level)) is None:
            low = level
        else:
            high, best = level, found
    return high, best
