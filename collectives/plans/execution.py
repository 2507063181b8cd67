"""Carry out instructions: wait for these messages, then do those things. All plans run in this way.

The runners (``runners/messages.py``, ``runners/shared.py``) make every request, every view and every bound call in
advance. A run then only starts, waits and calls. It slices no array and allocates nothing, except for the times of
its calls where they are noted (``notes.py``), as in training.

    whole                   all calls, one after the other; only such runs are noted
    start, advance, wait    what can be done at once; as far as messages have come; all that is left
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
    call: Call  # checked on all ranks, its algorithm and segments chosen
    buffer: Array  # flat; the collective works on it in place
    transport: Transport
    tag: int  # marks the messages of this plan, the same on all ranks
    slab: Slab | None = None  # where the plan's own memory is taken from
    reached: Reach | None = None  # the memory of all ranks, where they can reach it

    @property
    def op(self) -> str:
        """How contributions are combined; an average is a sum that the plan scales at its end."""
        return "sum" if self.call.op == "average" else self.call.op

    def on(self, buffer: Array) -> "Task":
        """The same in place on another buffer; the one before is not kept alive."""
        return replace(self, buffer=buffer, call=replace(self.call, x=buffer, out=None))


@dataclass(frozen=True)
class BoundInstruction:
    """Wait for all ``waits``, then do all ``actions``; ``parts`` say what each of these calls does."""

    waits: Sequence[Request | Event]
    actions: Sequence[Action]
    parts: Sequence[Part]


def straight(instructions: Sequence[BoundInstruction]) -> list[Action]:
    """All calls of the instructions, in their order."""
    return [call for each in instructions for call in (*(wait.Wait for wait in each.waits), *each.actions)]


class InstructionRun:
    """Goes through instructions, waiting or polling."""

    def __init__(self, rank: int, instructions: Sequence[BoundInstruction], requests: Sequence[Request]) -> None:
        self.rank, self.instructions, self.requests = rank, instructions, requests
        self.calls = straight(instructions)
        self.parts = [part for each in instructions for part in each.parts]
        self.tests = [tuple(wait.Test for wait in each.waits) for each in instructions]
        # Where in the calls an instruction begins; at last, their number.
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
        """Block until the run is over; TransportError if a message did not get through, with the step and the peer."""
        self.go(self.calls[self.starts[self.position] + self.waited :])

    def whole(self, note: Callable[[float], object] | None = None) -> None:
        """A whole run, call by call, which takes small collectives a third less time; raises as ``wait``. ``note`` is
        given the time before the first call and after each."""
        self.go(self.calls, note)

    def go(self, calls: Sequence[Action], note: Callable[[float], object] | None = None) -> None:
        """Make these calls, the last ones of the run. Their iterator knows how many are left, without a counter."""
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
        """How far it has come: instructions, and calls of the next one."""
        left, calls = self.left, self.calls  # read once: a watchdog asks from another thread
        if left is None:
            return self.position, self.waited
        done = max(len(calls) - length_hint(left) - 1, 0)
        position = bisect_right(self.starts, done) - 1
        return position, done - self.starts[position]

    def waits_for(self) -> str:
        """Which message it waits for; nothing where it copies or combines."""
        (position, waited), instructions = self.progress(), self.instructions
        parts = instructions[min(position, len(instructions) - 1)].parts if instructions else ()
        return str(parts[waited]) if waited < len(parts) and parts[waited].kind in WAITS else ""

    def finish(self, instruction: BoundInstruction) -> None:
        """The waits of an instruction are over: do the rest of it."""
        self.position += 1
        self.waited = 0
        for action in instruction.actions:
            action()

    def failure(self, error: Exception) -> TransportError:
        """Say which message an error struck: the one that is waited for, or those that were just started."""
        place = self.waits_for() or f"after instruction {self.progress()[0]} of {len(self.instructions)}"
        return TransportError(f"rank {self.rank}, {place}: {error}")

    def on(self, buffer: Array) -> "InstructionRun | None":
        """The same on another buffer of this count and type, made without the other ranks; None if they are needed. The
        two share side buffers, so a run of one must be over when a run of the other begins."""
        return None

    def free(self) -> None:
        """Give the requests back; the run must not be under way."""
        for request in self.requests:
            request.Free()
        self.requests, self.instructions, self.calls, self.parts, self.tests = (), (), [], [], []
