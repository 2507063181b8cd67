"""Locate the shard of each bucket that a rank updates, and the optimiser state for it.

    line, 3 ranks    | bucket 0          | bucket 1                   |
    a rank's shards  |     |##|     ...  |        |####|        ...   |     the 2nd third of each
    its state        |##|####|                                              the same shards, packed

With ``--update full`` every rank updates whole buckets. With ``sharded`` a rank updates its reduce-scatter shard
(``owners.py``) and keeps 1/P of the state.

Cutting buckets anew and writing a checkpoint gather the state: every rank then holds all of it for a while.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1 (optimiser state partitioning).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Protocol

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.line.bucket import Bucket


class Shards:
    """Hold one rank's shards of all buckets, from their partitions in line order.

    Attributes:
        state: the place of each bucket's state.
        count: total elements.

    >>> buckets = Bucket(0, 0, 12, (0,), 48), Bucket(1, 12, 24, (0,), 48)
    >>> shards = Shards(1, 3, dict(zip(buckets, (Partition((0, 4, 8, 12)), Partition((0, 0, 10, 12))))))
    >>> [(shards.of(bucket), shards.state[bucket]) for bucket in buckets]
    [(slice(4, 8, None), slice(0, 4, None)), (slice(12, 22, None), slice(4, 14, None))]
    """

    def __init__(self, rank: int, ranks: int, partitions: Mapping[Bucket, Partition]) -> None:
        self.rank, self.ranks, self.partitions = rank, ranks, partitions
        shards = [partition.shard(rank) for partition in partitions.values()]
        ends = list(accumulate((shard.stop - shard.start for shard in shards), initial=0))
        self.state = {bucket: slice(*place) for bucket, place in zip(partitions, pairwise(ends), strict=True)}
        self.count = ends[-1]

    def of(self, bucket: Bucket) -> slice:
        own = self.partitions[bucket].shard(self.rank)
        return slice(bucket.start + own.start, bucket.start + own.stop)

    def begins(self, bucket: Bucket) -> list[int]:
        """List the first element of each non-empty shard, counted within the bucket."""
        borders = self.partitions[bucket].borders
        return [start for start, stop in pairwise(borders) if start < stop]

    def to_line(self, own: Array, line: Array) -> None:
        """Copy this rank's state into the whole state."""
        for bucket, place in self.state.items():
            line[self.of(bucket)] = own[place]

    def from_line(self, line: Array, own: Array) -> None:
        """Copy this rank's state out of the whole state."""
        for bucket, place in self.state.items():
            own[place] = line[self.of(bucket)]


class Kept(Protocol):
    shards: Shards
    state: list[Array]
    values: Array


def whole_state(arena: Kept, transport: Transport) -> Iterator[Array]:
    """Gather the whole state, array by array, on all ranks. Collective."""
    if arena.shards.ranks == 1:
        yield from arena.state
        return
    ranks, partitions = arena.shards.ranks, arena.shards.partitions
    shards = [Shards(rank, ranks, partitions) for rank in range(ranks)]
    counts = [each.count for each in shards]
    for own in arena.state:
        empty_like = array_module(own).empty_like
        gathered = empty_like(arena.values, dtype=own.dtype)
        parts = [gathered[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
        parts[arena.shards.rank][...] = own
        with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True, counts=counts) as plan:
            plan()
        line = empty_like(gathered)
        for each, part in zip(shards, parts, strict=True):
            each.to_line(part, line)
        yield line


def take_state(arena: Kept, state: Iterable[Array]) -> None:
    """Keep this rank's part of the whole state, unless it holds all of it already."""
    for own, line in zip(arena.state, state, strict=True):
        if own is not line:
            arena.shards.from_line(line, own)
