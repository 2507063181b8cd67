"""Ranks of one host read and write each other's memory, phase by phase (``lowering/phases.py``).

Between two phases is a dissemination barrier: in round k a rank tells the one 2^k after it that it has come, so that
after ceil(lg P) rounds it knows that all have.

Loads after a barrier must see the stores before it. MPI does not promise that the barrier's messages ensure this. It
holds where processors keep stores in order and libraries send over queues in memory or sockets. It was tested on x86
only.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm
from dear_mpi.collectives.lowering.phases import Move, Operand, Share, phases
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import Action, BoundInstruction, InstructionRun, bind, straight
from dear_mpi.collectives.plans.reach import Reach
from dear_mpi.collectives.plans.runners.runner import Task
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.accumulate import combiner, copier
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import compute_dtype, is_floating

__all__ = ["check", "check_call", "prepare"]

Arrays = Mapping[Operand, Array]
BLOCK_BYTES = 128 * 1024  # stays in a second-level cache with what is added to it; see docs/benchmarks


def check(algorithm: str, collective: str, transport: Transport) -> None:
    find_algorithm(algorithm, collective)


def check_call(call: Call, transport: Transport) -> None:
    """There is nothing to check here: later the ranks find out together whether memory is in reach."""


def prepare(task: Task) -> InstructionRun:
    return SharedRun(task)


class SharedRun(InstructionRun):
    """A collective in memory that all ranks reach (``Task.reached``)."""

    def __init__(self, task: Task) -> None:
        assert task.reached is not None, "this runner is chosen where memory is reached"
        transport, dtype, mailboxes = task.transport, task.buffer.dtype, task.reached.mailboxes
        rank, size, self.op = transport.rank, transport.size, task.op
        at_once = is_floating(dtype) and compute_dtype(dtype) != dtype
        share = Share(task.call.partition(size), rank, BLOCK_BYTES // dtype.itemsize, at_once)
        moves = phases(task.call.collective, share, mailboxes=mailboxes)
        token = np.zeros(0, np.uint8)
        rounds = [
            (transport.send_init(token, (rank + far) % size, task.tag),
             transport.recv_init(token, (rank - far) % size, task.tag))
            for far in (1 << number for number in range((size - 1).bit_length()))
        ]  # fmt: skip
        sets = [list(self.bound(moves, arrays, rounds)) for arrays in named(task.reached, task.buffer, rank)]
        self.sets = deque((half, straight(half)) for half in sets)
        super().__init__(rank, sets[0], [request for pair in rounds for request in pair])

    def bound(
        self, moves: Sequence[Sequence[Move]], arrays: Arrays, rounds: Sequence[tuple[Request, Request]]
    ) -> Iterator[BoundInstruction]:
        """The phases, with a barrier between each two."""
        waits: Sequence[Request] = ()
        names = [f"barrier, {verb}" for verb in ("sending", "receiving")]
        actions: list[Action] = [self.bind(move, arrays) for move in moves[0]]
        for phase in moves[1:]:
            for pair in rounds:
                yield bind(waits, names[: len(waits)], [*actions, *(request.Start for request in pair)])
                waits, actions = pair, []
            actions = [*actions, *(self.bind(move, arrays) for move in phase)]
        yield bind(waits, names[: len(waits)], actions)

    def bind(self, move: Move, arrays: Arrays) -> Action:
        """A call that carries a move out."""
        part = slice(move.part.start, move.part.stop)
        target, sources = arrays[move.target][part], [arrays[source][part] for source in move.sources]
        if len(sources) == 1:
            return copier(target, sources[0])
        own = move.sources.index(move.target)
        return combiner(target, sources[:own], sources[own + 1 :], self.op)

    def start(self) -> None:
        self.swap_mailboxes()
        super().start()

    def whole(self) -> None:
        self.swap_mailboxes()
        super().whole()

    def swap_mailboxes(self) -> None:
        """Take the other mailboxes."""
        self.instructions, self.calls = self.sets[0]
        self.sets.rotate()

    def free(self) -> None:
        super().free()
        self.sets.clear()  # and with them the views of other ranks' memory


def named(reached: Reach, buffer: Array, rank: int) -> list[Arrays]:
    """The arrays that moves name, once for each set of mailboxes; buffers are the same in every run."""
    kind, starts = ("mailbox", (0, buffer.size)) if reached.mailboxes else ("buffer", (0,))
    sets = [[array[start : start + buffer.size] for array in reached.arrays] for start in starts]
    return [{(kind, peer): array for peer, array in enumerate(arrays)} | {("buffer", rank): buffer} for arrays in sets]
