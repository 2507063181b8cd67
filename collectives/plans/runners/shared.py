"""Run collectives in the memory of a host's ranks, phase by phase (``lowering/phases.py``).

Between two phases is a dissemination barrier: in round k a rank signals the rank 2^k after it; after ceil(lg P) rounds
all ranks have arrived.

Loads after a barrier must see stores before it. MPI does not promise this for messages. It holds on processors that
keep stores in order, with libraries that use queues in memory or sockets; tested only on x86.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dear_mpi.collectives.lowering.phases import Move, Operand, phases
from dear_mpi.collectives.plans.execution import Action, BoundInstruction, InstructionRun, Task, straight
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.runners.messages import check, check_call
from dear_mpi.collectives.transports.transport import Request
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.calls import combiner, copier

__all__ = ["check", "check_call", "prepare"]  # ranks find out later, together, whether memory is reachable

Round = tuple[Sequence[int], tuple[Request, Request]]


class SharedRun(InstructionRun):
    """Runs a collective in memory that all ranks reach (``Task.reached``)."""

    def __init__(self, task: Task) -> None:
        assert task.reached is not None, "this runner is chosen where memory is reached"
        self.task = task
        self.reached, self.buffer, self.op = task.reached, task.buffer, task.op
        transport, rank, size = task.transport, task.transport.rank, task.transport.size
        self.rank = rank
        moves = phases(task.call.collective, task.reached.share, mailboxes=task.reached.mailboxes)
        token = np.zeros(0, np.uint8)
        rounds = []
        for far in (1 << number for number in range((size - 1).bit_length())):
            to, source = (rank + far) % size, (rank - far) % size
            pair = transport.send_init(token, to, task.tag), transport.recv_init(token, source, task.tag)
            rounds.append(((to, source), pair))
        runs = [list(self.bound(moves, number, rounds)) for number in range(1 + task.reached.mailboxes)]
        self.runs = [(instructions, straight(instructions)) for instructions in runs]
        self.numbers = itertools.cycle(range(len(runs)))
        super().__init__(rank, runs[0], [request for _, pair in rounds for request in pair])

    def bound(self, moves: Sequence[Sequence[Move]], run: int, rounds: Sequence[Round]) -> Iterator[BoundInstruction]:
        waits: Sequence[Request] = ()
        actions: list[Action] = [self.bind(move, run) for move in moves[0]]
        parts = [self.part(move, 0) for move in moves[0]]
        for number, phase in enumerate(moves[1:]):
            for place, (peers, pair) in enumerate(rounds):
                ends = [Part("ending", number, place, *each) for each in zip(peers, (False, True), strict=True)]
                parts += [end._replace(kind="starting") for end in ends]
                yield BoundInstruction(waits, [*actions, *(request.Start for request in pair)], parts)
                waits, parts, actions = pair, ends, []
            actions += [self.bind(move, run) for move in phase]
            parts = [*parts, *(self.part(move, number + 1) for move in phase)]
        yield BoundInstruction(waits, actions, parts)

    def part(self, move: Move, phase: int) -> Part:
        kind = "copying" if len(move.sources) == 1 else "combining"
        (_, source), (_, target) = move.sources[0], move.target
        peer = next((rank for rank in (source, target) if rank != self.rank and kind == "copying"), None)
        chunk = bisect_right(self.reached.share.partition.borders, move.elements.start) - 1
        return Part(kind, phase, peer=peer, chunk=chunk, nbytes=len(move.elements) * self.buffer.itemsize)

    def bind(self, move: Move, run: int) -> Action:
        target, sources = self.view(move.target, move, run), [self.view(of, move, run) for of in move.sources]
        if len(sources) == 1:
            return copier(target, sources[0])
        own = move.sources.index(move.target)
        return combiner(target, sources[:own], sources[own + 1 :], self.op)

    def view(self, operand: Operand, move: Move, run: int) -> Array:
        kind, rank = operand
        elements = self.reached.share.in_mailbox(move.elements, run) if kind == "mailbox" else move.elements
        array = self.buffer if operand == ("buffer", self.rank) else self.reached.arrays[rank]
        return array[elements.start : elements.stop]

    def on(self, buffer: Array) -> "SharedRun | None":
        if not self.reached.mailboxes:
            return None
        other = SharedRun(self.task.on(buffer))
        other.numbers = self.numbers  # runs of one plan for the other ranks
        return other

    def start(self) -> None:
        self.next_run()
        super().start()

    def whole(self, note: Callable[[float], object] | None = None) -> None:
        self.next_run()
        super().whole(note)

    def next_run(self) -> None:
        """Alternate between even and odd runs, which use different mailbox sets."""
        self.instructions, self.calls = self.runs[next(self.numbers)]

    def free(self) -> None:
        super().free()
        self.runs.clear()
        del self.reached, self.task  # releases the views of other ranks' memory


prepare = SharedRun
