"""The ordered algorithm through shared memory: ranks of one host read and write each other's buffers.

            large       everyone is there | sum my chunk over all buffers, block by block, and store each sum
                        in all of them while it is in cache | everyone is done

            small       copy my data to my mailbox | everyone has done so | sum over all mailboxes, or copy from them

The bars are dissemination barriers: in round k a rank tells the one 2^k after it that it has come, so that after
ceil(lg P) rounds it knows that all have. There are two sets of mailboxes, used in turn, so that one barrier is enough:
whoever passes the next one knows that everybody has read the mailboxes of the last run.

Sums are formed in rank order as by ``algorithms/ordered.py``, and have the same bits; its programs say who sends what
to whom. What saves time is that nothing is sent: an all-reduce reads and writes every number once, where messages copy
it P - 1 times.

Large needs buffers in shared memory (``Transport.shareable``); small takes any.

Stores before a barrier must be seen by loads behind it. That the messages of the barrier bring this about is no promise
of MPI; it holds where processors keep stores in order and libraries send over queues in memory or sockets: tested on
x86, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.collectives.plans.execution import Action, BoundInstruction, InstructionRun, bind, straight
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.accumulate import accumulator, combiner, copier
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.dtypes import compute_dtype, is_floating
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.slab import Slab

__all__ = ["MESSAGES_BYTES", "Reach", "SharedRun", "reach"]

MESSAGES_BYTES = 4 * 1024  # up to here, the fewest messages are faster than copies and a barrier
SMALL_BYTES = 16 * 1024  # up to here, one barrier and a copy cost less than two barriers
ANY_BUFFER_BYTES = 64 * 1024  # up to here, mailboxes beat messages between ranks of a host
BLOCK_BYTES = 128 * 1024  # stays in a second-level cache with what is added to it; see docs/benchmarks


@dataclass(frozen=True)
class Reach:
    """The same memory of every rank: their buffers themselves, or mailboxes beside them, twice as large."""

    arrays: Sequence[Array]
    mailboxes: bool


def reach(buffer: Array, transport: Transport, slab: Slab | None, most_bytes: float = ANY_BUFFER_BYTES) -> Reach | None:
    """Collective: how ranks can read and write each other's data, if they can.

    Args:
        slab: where mailboxes are taken from, if others can reach it.
        most_bytes: up to which size a buffer that others cannot reach gets mailboxes beside it.
    """
    if library_of(buffer) != "numpy":
        return None
    if buffer.nbytes > SMALL_BYTES:
        arrays = transport.reach(buffer)
        if arrays is not None:
            return Reach(arrays, mailboxes=False)
    if buffer.nbytes > most_bytes:
        return None
    count = 2 * max(buffer.size, 1)  # an empty array would be nowhere
    arrays = None if slab is None else transport.reach(slab.empty(count, buffer.dtype))
    if arrays is None:
        arrays = transport.reach(transport.shareable(count * buffer.dtype.itemsize).view(buffer.dtype))
    return None if arrays is None else Reach(arrays, mailboxes=True)


class SharedRun(InstructionRun):
    """A collective on the flat buffers of ranks that share a host's memory, in place.

    Args:
        collective: ``reduce_scatter``, ``all_gather`` or ``all_reduce``.
        reached: what ``reach`` found.
        tag: marks the messages of this plan's barriers.
    """

    def __init__(
        self,
        collective: str,
        buffer: Array,
        partition: Partition,
        transport: Transport,
        *,
        reached: Reach,
        op: str,
        tag: int,
    ) -> None:
        self.buffer, self.partition, self.op = buffer, partition, op
        self.rank, self.size = transport.rank, transport.size
        token = np.zeros(0, np.uint8)
        rounds = [
            (transport.send_init(token, (self.rank + far) % self.size, tag),
             transport.recv_init(token, (self.rank - far) % self.size, tag))
            for far in (1 << number for number in range((self.size - 1).bit_length()))
        ]  # fmt: skip
        if reached.mailboxes:
            count, work = buffer.size, lookup("collective", collective, SMALL)
            halves = ([array[start : start + count] for array in reached.arrays] for start in (0, count))
            lists = [work(self, mailboxes) for mailboxes in halves]
        else:
            lists = [[[], lookup("collective", collective, LARGE)(self, reached.arrays), []]]
        instructions = [list(self.entries_of(phases, rounds)) for phases in lists]
        self.turns = deque((turn, straight(turn)) for turn in instructions)
        super().__init__(self.rank, instructions[0], [request for pair in rounds for request in pair])

    def entries_of(
        self, phases: Sequence[list[Action]], rounds: Sequence[tuple[Request, Request]]
    ) -> Iterator[BoundInstruction]:
        """The phases with a barrier between each two."""
        waits: Sequence[Request] = ()
        actions, names = list(phases[0]), [f"barrier, {verb}" for verb in ("sending", "receiving")]
        for phase in phases[1:]:
            for pair in rounds:
                yield bind(waits, names[: len(waits)], [*actions, *(request.Start for request in pair)])
                waits, actions = pair, []
            actions = [*actions, *phase]
        yield bind(waits, names[: len(waits)], actions)

    def start(self) -> None:
        self.turn()
        super().start()

    def whole(self) -> None:
        self.turn()
        super().whole()

    def turn(self) -> None:
        """Take the other mailboxes."""
        self.instructions, self.calls = self.turns[0]
        self.turns.rotate()

    def free(self) -> None:
        super().free()
        self.turns.clear()  # and with them the views of other ranks' memory

    def others(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """The arrays of the ranks before this one, and of those after it."""
        return list(arrays[: self.rank]), list(arrays[self.rank + 1 :])

    def combine(self, part: slice, arrays: Sequence[Array]) -> list[Action]:
        """Sum a part of all ranks' arrays, but for the own one that of the buffer, into the buffer."""
        before, after = self.others([array[part] for array in arrays])
        return [combiner(self.buffer[part], before, after, self.op)] if before or after else []


def small_sums(run: SharedRun, mailboxes: Sequence[Array], part: slice) -> list[list[Action]]:
    return [[copier(mailboxes[run.rank], run.buffer)], run.combine(part, mailboxes)]


def small_all_gather(run: SharedRun, mailboxes: Sequence[Array]) -> list[list[Action]]:
    own, shards = run.partition.shard(run.rank), map(run.partition.shard, range(run.size))
    copies = [
        copier(run.buffer[part], mailbox[part]) for part, mailbox in zip(shards, mailboxes, strict=True) if part != own
    ]
    return [[copier(mailboxes[run.rank][own], run.buffer[own])], copies]


def large_all_gather(run: SharedRun, buffers: Sequence[Array]) -> list[Action]:
    """Store the own shard in all buffers."""
    before, after = run.others(buffers)
    return [copier(array[block], run.buffer[block]) for block in blocks(run) for array in before + after]


def large_all_reduce(run: SharedRun, buffers: Sequence[Array]) -> list[Action]:
    """Sum the own shard into the first rank's buffer, which is where rank order begins, and store it in all others."""
    first, *rest = buffers
    if rounds_once(run.buffer.dtype) and len(rest) > 1:
        return run.combine(run.partition.shard(run.rank), buffers) + large_all_gather(run, buffers)
    calls: list[Action] = []
    for block in blocks(run):
        calls += [accumulator(first[block], array[block], run.op) for array in rest]
        calls += [copier(array[block], first[block]) for array in rest]
    return calls


def rounds_once(dtype: np.dtype) -> bool:
    """Whether sums of this type are formed in a wider one."""
    return is_floating(dtype) and compute_dtype(dtype) != dtype


def blocks(run: SharedRun) -> Iterator[slice]:
    """The own shard, cut into what stays in a cache."""
    own, step = run.partition.shard(run.rank), BLOCK_BYTES // run.buffer.dtype.itemsize
    return (slice(start, min(start + step, own.stop)) for start in range(own.start, own.stop, step))


Small = Callable[[SharedRun, Sequence[Array]], list[list[Action]]]
Large = Callable[[SharedRun, Sequence[Array]], list[Action]]

# Before and after the barrier.
SMALL: dict[str, Small] = {
    "all_reduce": lambda run, mailboxes: small_sums(run, mailboxes, slice(None)),
    "reduce_scatter": lambda run, mailboxes: small_sums(run, mailboxes, run.partition.shard(run.rank)),
    "all_gather": small_all_gather,
}
# Between two barriers.
LARGE: dict[str, Large] = {
    "all_reduce": large_all_reduce,
    "reduce_scatter": lambda run, buffers: run.combine(run.partition.shard(run.rank), buffers),
    "all_gather": large_all_gather,
}
