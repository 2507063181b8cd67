"""Execute bound instructions: wait for messages, then call; every plan runs this way.

Runners prepare all requests, views and calls. A run only starts, waits and calls: it slices no array and allocates
nothing, except for noted times (``notes.py``).

    whole                   all calls in order; only these runs are noted
    start, advance, wait    begin, continue without blocking, finish
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import length_hint
from time import perf_counter

from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.notes import WAITS, Part
from dear_mpi.collectives.plans.reach import Reach
from dear_mpi.collectives.program.errors import TransportError
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, Event
from dear_mpi.kernels.slab import Slab

Action = Callable[[], object]


@dataclass(frozen=True)
class Task:
    """A runner's input."""

    call: Call  # checked on all ranks; algorithm and segments are chosen
    buffer: Array  # flat; updated in place
    transport: Transport
    tag: int  # of this plan's messages, equal on all ranks
    slab: Slab | None = None  # for side buffers
    reached: Reach | None = None  # memory of all ranks, if reachable

    @property
    def op(self) -> str:
        return "sum" if self.call.op == "average" else self.call.op  # the plan scales the sum

    def on(self, buffer: Array) -> "Task":
        return replace(self, buffer=buffer, call=replace(self.call, x=buffer, out=None))


@dataclass(frozen=True)
class BoundInstruction:
    """Wait for all ``waits``, then do all ``actions``; ``parts`` describe these calls."""

    waits: Sequence[Request | Event]
    actions: Sequence[Action]
    parts: Sequence[Part]


def straight(instructions: Sequence[BoundInstruction]) -> list[Action]:
    return [call for each in instructions for call in (*(wait.Wait for wait in each.waits), *each.actions)]


class InstructionRun:
    """Runs instructions, blocking or polling; errors become a TransportError that names step and peer."""

    def __init__(self, rank: int, instructions: Sequence[BoundInstruction], requests: Sequence[Request]) -> None:
        self.rank, self.instructions, self.requests = rank, instructions, requests
        self.calls = straight(instructions)
        self.parts = [part for each in instructions for part in each.parts]
        self.tests = [tuple(wait.Test for wait in each.waits) for each in instructions]
        # Index of each instruction's first call; last, the number of calls.
        self.starts = list(accumulate((len(each.waits) + len(each.actions) for each in instructions), initial=0))
        self.position = self.waited = 0
        self.left: Iterator[Action] | None = None

    def start(self) -> None:
        self.position, self.waited, self.left = 0, 0, None
        if not self.instructions[0].waits:
            self.finish(self.instructions[0])

    def advance(self) -> bool:
        try:
            while self.position < len(self.instructions):
                instruction = self.instructions[self.position]
                for test in self.tests[self.position][self.waited :]:
                    if not test():
                        return False
                    self.waited += 1
                self.finish(instruction)
        except Exception as error:
            raise self.failure(error) from error
        return True

    def wait(self) -> None:
        self.go(self.calls[self.starts[self.position] + self.waited :])

    def whole(self, note: Callable[[float], object] | None = None) -> None:
        """Run all calls: a third faster than ``start`` and ``wait`` for small collectives."""
        self.go(self.calls, note)

    def go(self, calls: Sequence[Action], note: Callable[[float], object] | None = None) -> None:
        """Make the last calls of a run; their iterator counts what is left."""
        left = self.left = iter(calls)
        try:
            if note is None:
                for call in left:
                    call()
            else:
                clock = perf_counter
                note(clock())
                for call in left:
                    call()
                    note(clock())
        except Exception as error:
            raise self.failure(error) from error
        self.position, self.waited, self.left = len(self.instructions), 0, None

    def progress(self) -> tuple[int, ...]:
        left, calls = self.left, self.calls  # read once: a watchdog calls from another thread
        if left is None:
            return self.position, self.waited
        done = max(len(calls) - length_hint(left) - 1, 0)
        position = bisect_right(self.starts, done) - 1
        return position, done - self.starts[position]

    def waits_for(self) -> str:
        (position, waited), instructions = self.progress(), self.instructions
        parts = instructions[min(position, len(instructions) - 1)].parts if instructions else ()
        return str(parts[waited]) if waited < len(parts) and parts[waited].kind in WAITS else ""

    def finish(self, instruction: BoundInstruction) -> None:
        self.position += 1
        self.waited = 0
        for action in instruction.actions:
            action()

    def failure(self, error: Exception) -> TransportError:
        place = self.waits_for() or f"after instruction {self.progress()[0]} of {len(self.instructions)}"
        return TransportError(f"rank {self.rank}, {place}: {error}")

    def on(self, buffer: Array) -> "InstructionRun | None":
        """Bind to another buffer of this count and type; None if the other ranks are needed.

        Both runs share side buffers, so only one may run at a time.
        """
        return None

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests, self.instructions, self.calls, self.parts, self.tests = (), (), [], [], []
