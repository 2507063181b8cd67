"""Who updates which part of a bucket, as data: a ``Partition`` for each bucket.

    bucket    | qkv              | out  | expand                | shrink                |
    even      |        0          |        1          |        2         |        3       |    for optimisers by element
    weights   |     0    |     1    |     2    |                  3, which is faster     |
    costs     |        0         |  1   |           2           |           3           |    for those of whole tensors

Shards follow each other in the order of ranks, as collectives have them. Where an optimiser looks at whole tensors,
each has one owner, so a rank's shard of a bucket is a run of its tensors, or empty (``placement.py``).

Owners depend neither on the route nor on the rank. So gradients are summed along the same chains of ranks whether all
ranks update all, or owners update: both have the same bits.
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
    """How so many ranks share out buckets; by default there is one.

    Attributes:
        weights: how fast each rank is; all alike if not given.
        costs: of an update of each tensor, if it has one owner.

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
        """Whether all ranks own as much of each bucket."""
        return self.weights is None and self.costs is None

    @property
    def speeds(self) -> Sequence[float]:
        """The share of each rank in what is to be done."""
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
        """Of whole parts of the grid, of 128 bytes."""
        unit = layout.grid // self.ranks
        shares = Partition.of(bucket.count // unit, self.ranks, self.weights)
        return Partition(tuple(unit * border for border in shares.borders))

    def work(self, layout: Layout, start: int, stop: int) -> float:
        """What an update between two elements of the line takes, in mean elements of the line."""
        if self.costs is None:
            return stop - start
        return sum(self.costs[tensor] for tensor in layout.tensors(start, stop)) * layout.count / sum(self.costs)


@dataclass(frozen=True)
class Ownership:
    """What decides who the owners are: an optimiser, if it looks at whole tensors, and the weights of ranks.

    Weights that are to be measured are alike at first.
    """

    optimizer: Optimizer | None = None
    weights: Sequence[float] | str | None = None

    @property
    def whole(self) -> bool:
        """Whether each tensor has one owner."""
        return self.optimizer is not None and self.optimizer.scope == "tensor"

    def owners(self, ranks: int, costs: Iterable[float]) -> Owners:
        """Of tensors whose updates cost so much; a ValueError if weights are wrong."""
        return Owners(ranks, known(self.weights, ranks), tuple(costs) if self.whole else None)


class Sharing:
    """How owners share out the buckets of a cut, and what their updates take.

    Other buckets, such as portions of one, or those of a cut that is only thought of, are shared out each alone.
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
        """Elements of each rank; None where all have as many."""
        return None if self.owners.even else tuple(self.of(bucket).counts)

    def longest(self, bucket: Bucket) -> int | None:
        """Elements of the longest shard; None where all are equal."""
        return None if self.owners.even else max(self.of(bucket).counts)

    @property
    def work(self) -> Callable[[Bucket], tuple[float, Array]] | None:
        """From a bucket to what its update takes, and those of its shards, in mean elements of the line; None where all
        shards are equal."""
        return None if self.owners.even else self.works

    def works(self, bucket: Bucket) -> tuple[float, Array]:
        if bucket not in self.found:
            borders = (bucket.start + border for border in self.of(bucket).borders)
            each = np.array([self.owners.work(self.layout, *span) for span in pairwise(borders)], float)
            self.found[bucket] = float(each.sum()), each
        return self.found[bucket]


def partition_of(layout: Layout, bucket: Bucket, tensors: Sequence[int], run: Sequence[int]) -> Partition:
    """The shards of a bucket of which each rank has so many of the tensors; paddings belong to what is before them."""
    begins = [0, *(layout.offsets[tensor] - bucket.start for tensor in tensors[1:]), bucket.count]
    borders = [begins[done] for done in accumulate(run, initial=0)]
    return Partition((*borders[:-1], bucket.count))
