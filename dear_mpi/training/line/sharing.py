"""Owners of the buckets of a line: who has how much, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.array import Array
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.line.owners import Owners


class Sharing:
    """How owners share out the buckets of a cut.

    Other buckets, such as portions of one, or those of a cut that is only thought of, are shared out each alone.

    Attributes:
        partitions: of the buckets of the cut.
    """

    def __init__(self, owners: Owners, layout: Layout, buckets: Cut) -> None:
        self.owners, self.layout = owners, layout
        self.partitions = owners.partitions(layout, buckets)
        self.others: dict[Bucket, Partition] = {}
        self.found: dict[Bucket, tuple[float, Array]] = {}

    def of(self, bucket: Bucket) -> Partition:
        """The shards of a bucket."""
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
        """From a bucket to what its update takes, and those of its shards, in mean elements of the line.

        None where all shards are equal.
        """
        return None if self.owners.even else self.works

    def works(self, bucket: Bucket) -> tuple[float, Array]:
        if bucket not in self.found:
            borders = (bucket.start + border for border in self.of(bucket).borders)
            each = np.array([self.owners.work(self.layout, *span) for span in pairwise(borders)], float)
            self.found[bucket] = float(each.sum()), each
        return self.found[bucket]
