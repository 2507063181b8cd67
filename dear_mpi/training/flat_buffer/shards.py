"""Locate the shard of each bucket that a rank updates, and the optimiser state for it.

    buffer, 3 ranks  | bucket 0          | bucket 1                   |
    a rank's shards  |     |##|     ...  |        |####|        ...   |     the 2nd third of each
    its state        |##|####|                                              the same shards, packed

With ``--update full`` every rank updates whole buckets. New cuts and checkpoints gather sharded state.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1 (optimiser state partitioning).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.flat_buffer.bucket import Bucket


class Shards:
    """Hold one rank's shards of all buckets, from their partitions in buffer order.

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

    def to_buffer(self, own: Array, buffer: Array) -> None:
        """Copy this rank's state into the whole state."""
        for bucket, place in self.state.items():
            buffer[self.of(bucket)] = own[place]


def whole_state(arena: Any, transport: Transport) -> Iterator[Array]:
    """Gather the whole state of an ``Arena``, array by array, on all ranks. Collective."""
    if arena.shards.ranks == 1:
        yield from arena.state
        return
    ranks = arena.shards.ranks
    shards = [Shards(rank, ranks, arena.shards.partitions) for rank in range(ranks)]
    counts = [each.count for each in shards]
    for own in arena.state:
        gathered, buffer = (array_module(own).empty_like(arena.values, dtype=own.dtype) for _ in range(2))
        parts = [gathered[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
        parts[arena.shards.rank][...] = own
        with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True, counts=counts) as plan:
            plan()
        for each, part in zip(shards, parts, strict=True):
            each.to_buffer(part, buffer)
        yield buffer


def take_state(arena: Any, state: Iterable[Array]) -> None:
    """Keep this rank's part of the whole state, unless it holds all of it already."""
    for own, buffer in zip(arena.state, state, strict=True):
        if own is not buffer:
            for bucket, place in arena.shards.state.items():
                own[place] = buffer[arena.shards.of(bucket)]
