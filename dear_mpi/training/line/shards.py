"""Which rank updates which part of a bucket, and where the optimiser's state for that part lies.

    line, 3 ranks    | bucket 0          | bucket 1                   |
    a rank's shards  |     |##|     ...  |        |####|        ...   |     the 2nd third of each
    its state        |##|####|                                              the same, one after the other

With ``--update full`` every rank updates whole buckets, as if it were the only one. With ``sharded`` a rank updates the
shard that a reduce-scatter leaves with it, so it keeps 1/P of the state. Buckets begin and end on a grid of P times 128
bytes (``layout.py``), so all shards of a bucket are equal. The state of a bucket that begins at element n of the line
begins at n/P.

To cut buckets anew, or to write a checkpoint, the state is gathered: then every rank has all of it for a while.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1 (optimiser state partitioning).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.line.bucket import Bucket, Cut


@dataclass(frozen=True)
class Shards:
    """The shards of a rank; by default of the only one.

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

    def from_line(self, line: Array, buckets: Iterable[Bucket], own: Array) -> None:
        """Take this rank's state out of the state of the whole line."""
        for bucket in buckets:
            own[self.state(bucket)] = line[self.of(bucket)]


class Kept(Protocol):
    """What an ``Arena`` has of the state."""

    shards: Shards
    state: list[Array]
    values: Array


def whole_state(arena: Kept, buckets: Cut, transport: Transport) -> Iterator[Array]:
    """Collective: the state of the whole line, array by array, on all ranks."""
    if arena.shards.ranks == 1:
        yield from arena.state
        return
    shards = arena.shards
    for own in arena.state:
        empty_like = array_module(own).empty_like
        gathered = empty_like(arena.values, dtype=own.dtype)
        rows = gathered.reshape(shards.ranks, -1)
        rows[shards.rank] = own
        with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True) as plan:
            plan()
        line = empty_like(gathered)
        for bucket in buckets:
            line[bucket.start : bucket.stop].reshape(shards.ranks, -1)[...] = rows[:, shards.state(bucket)]
        yield line


@contextmanager
def state_line(arena: Kept, buckets: Cut, number: int) -> Iterator[Array]:
    """A state array for the whole line, to be filled within the block; this rank keeps its part of it."""
    own = arena.state[number]
    if arena.shards.ranks == 1:
        yield own
        return
    line = array_module(own).zeros(arena.values.shape, own.dtype)
    yield line
    arena.shards.from_line(line, buckets, own)
