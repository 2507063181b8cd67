"""Which rank updates which part of a bucket, and where the optimiser's state for that part lies.

    line, 3 ranks    | bucket 0          | bucket 1                   |
    a rank's shards  |     |##|     ...  |        |####|        ...   |     the 2nd third of each
    its state        |##|####|                                              the same, one after the other

With ``--update full`` every rank updates whole buckets, as if it were the only one. With ``sharded`` a rank updates the
shard that a reduce-scatter leaves with it, so it keeps 1/P of the state. Buckets begin and end on a grid of P times 128
bytes (``layout.py``), so all shards of a bucket are equal. The state of a bucket that begins at element n of the line
begins at n/P.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1 (optimiser state partitioning).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.array import Array
from dear_mpi.training.line.bucket import Bucket


@dataclass(frozen=True)
class Shards:
    """The shards of rank ``rank`` of ``ranks``; by default of the only one.

    >>> bucket = Bucket(0, 12, 24, (0,), 48)
    >>> Shards().of(bucket), Shards(1, 3).of(bucket), Shards(1, 3).state(bucket)
    (slice(12, 24, None), slice(16, 20, None), slice(4, 8, None))
    """

    rank: int = 0
    ranks: int = 1

    def of(self, bucket: Bucket) -> slice:
        """The elements of the line that this rank updates."""
        own = Partition.of(bucket.count, self.ranks).shard(self.rank)
        return slice(bucket.start + own.start, bucket.start + own.stop)

    def state(self, bucket: Bucket) -> slice:
        """Where the state for them lies."""
        return slice(bucket.start // self.ranks, bucket.stop // self.ranks)

    def on_line(self, gathered: Array, buckets: Iterable[Bucket], line: Array) -> None:
        """Bring the states of all ranks, one after the other in ``gathered``, into the order of the line."""
        rows = gathered.reshape(self.ranks, -1)
        for bucket in buckets:
            line[bucket.start : bucket.stop].reshape(self.ranks, -1)[...] = rows[:, self.state(bucket)]

    def from_line(self, line: Array, buckets: Iterable[Bucket], own: Array) -> None:
        """Take this rank's state out of the state of the whole line."""
        for bucket in buckets:
            own[self.state(bucket)] = line[self.of(bucket)]
