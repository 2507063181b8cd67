"""Decide which rank updates which part of a bucket: a ``Partition`` for each bucket.

    bucket    | qkv              | out  | expand                | shrink                |
    even      |        0          |        1          |        2         |        3       |    elementwise optimisers
    weights   |     0    |     1    |     2    |                  3, which is faster     |
    costs     |        0         |  1   |           2           |           3           |    whole-tensor optimisers

Shards follow each other in rank order, as collectives require. For an optimiser of whole tensors each tensor has one
owner, so a shard is a run of tensors, or empty (``placement.py``).

Owners depend neither on the route nor on the rank. So full and sharded updates sum gradients along the same chains of
ranks, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizer import Optimizer
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.line.placement import placed
from dear_mpi.training.line.weights import known


@dataclass(frozen=True)
class Owners:
    """Share out buckets between ranks; by default there is one rank.

    Attributes:
        weights: speed of each rank; all equal if not given.
        costs: update cost of each tensor, if each has one owner.

    >>> shapes = [[(0, (96,)), (1, (96,)), (2, (64,))]]
    >>> elements, tensors = (Layout.of(shapes, itemsize=4, ranks=2, whole=whole) for whole in (False, True))

    >>> bucket = Bucket(0, 0, 256, (0,), 1024)
    >>> cases = (Owners(2), elements), (Owners(2, (3, 1)), elements), (Owners(2, costs=(5, 1, 2)), tensors)
    >>> [owners.partitions(layout, [bucket])[bucket].counts for owners, layout in cases]
    [[128, 128], [192, 64], [96, 160]]
    """

    ranks: int = 1
    weights: tuple[float, ...] | None = None
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
            return {bucket: self.by_weight(layout, bucket) for bucket in buckets}
        tensors = {bucket: layout.tensors(*bucket.interval) for bucket in buckets}
        costs = {bucket: [self.costs[tensor] for tensor in tensors[bucket]] for bucket in buckets}
        runs = placed(costs, self.speeds)
        return {each: partition_of(layout, each, tensors[each], runs[each]) for each in buckets}

    def by_weight(self, layout: Layout, bucket: Bucket) -> Partition:
        unit = layout.grid // self.ranks
        shares = Partition.of(bucket.count // unit, self.ranks, self.weights)
        return Partition(tuple(unit * border for border in shares.borders))

    def work(self, layout: Layout, start: int, stop: int) -> float:
        """Return the update cost of an interval, in mean elements of the line."""
        if self.costs is None:
            return stop - start
        return sum(self.costs[tensor] for tensor in layout.tensors(start, stop)) * layout.count / sum(self.costs)


@dataclass(frozen=True)
class Ownership:
    """Choose owners by the optimiser, if it needs whole tensors, and by the speeds (weights) of ranks.

    Unmeasured speeds count as equal.
    """

    optimizer: Optimizer | None = None
    weights: Sequence[float] | str | None = None

    @property
    def whole(self) -> bool:
        return self.optimizer is not None and self.optimizer.scope == "tensor"

    def owners(self, ranks: int, costs: Iterable[float]) -> Owners:
        """Return the owners for these update costs; ValueError if weights are wrong."""
        return Owners(ranks, known(self.weights, ranks), tuple(costs) if self.whole else None)


class Sharing:
    """Share out the buckets of a cut, with their update costs.

    Each other bucket, such as a portion or one of a hypothetical cut, is shared out separately.
    """

    def __init__(self, owners: Owners, layout: Layout, buckets: Cut) -> None:
        self.owners, self.layout = owners, layout
        self.partitions = owners.partitions(layout, buckets)
        self.others: dict[Bucket, Partition] = {}
        self.found: dict[Bucket, tuple[float, Array]] = {}

    def of(self, bucket: Bucket) -> Partition:
        if bucket in self.partitions:
            return self.partitions[bucket]
        if bucket not in self.others:
            self.others |= self.owners.partitions(self.layout, [bucket])
        return self.others[bucket]

    def counts(self, bucket: Bucket) -> tuple[int, ...] | None:
        """Return the elements of each rank; None if all are equal."""
        return None if self.owners.even else tuple(self.of(bucket).counts)

    def longest(self, bucket: Bucket) -> int | None:
        """Return the elements of the longest shard; None if all are equal."""
        return None if self.owners.even else max(self.of(bucket).counts)

    @property
    def work(self) -> Callable[[Bucket], tuple[float, Array]] | None:
        """Map a bucket to its update cost and each shard's, in mean elements; None if all shards are equal."""
        return None if self.owners.even else self.works

    def works(self, bucket: Bucket) -> tuple[float, Array]:
        if bucket not in self.found:
            borders = (bucket.start + border for border in self.of(bucket).borders)
            each = np.array([self.owners.work(self.layout, *span) for span in pairwise(borders)], float)
            self.found[bucket] = float(each.sum()), each
        return self.found[bucket]


def partition_of(layout: Layout, bucket: Bucket, tensors: Sequence[int], run: Sequence[int]) -> Partition:
    """Partition a bucket by tensors per rank; padding belongs to the tensor before it."""
    begins = [0, *(layout.offsets[tensor] - bucket.start for tensor in tensors[1:]), bucket.count]
    borders = [begins[done] for done in accumulate(run, initial=0)]
    return Partition((*borders[:-1], bucket.count))
