"""Run a prepared collective many times. All ranks start their plans in one order.

A runner binds all requests, views and calls in advance. A run only starts, waits and calls: it slices no array and
allocates nothing, except for noted times (``notes.py``).

    whole                   all calls in order: a third faster than ``start`` and ``wait`` for small collectives
    start, advance, wait    begin, continue without blocking, finish

From ``start`` to the end of a run the arrays belong to the plan; the transport keeps it alive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.notes import WAITS, Notes, Part
from dear_mpi.collectives.program.errors import CollectiveError, TransportError
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, Event

if TYPE_CHECKING:
    from dear_mpi.kernels.slab import Slab

__all__ = ["Plan", "Workspace"]

T = TypeVar("T")
Action: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Task:
    """A runner's input."""

    call: Call  # checked on all ranks; algorithm and segments are chosen
    buffer: Array  # flat; updated in place
    transport: Transport
    tag: int  # of this plan's messages, equal on all ranks
    slab: Slab | None = None  # for side buffers
    reached: Any = None  # memory of all ranks (``Reach``), if reachable

    @property
    def op(self) -> str:
        return "sum" if self.call.op == "average" else self.call.op  # the plan scales the sum

    def on(self, buffer: Array) -> Task:
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

    def on(self, buffer: Array) -> InstructionRun | None:
        """Bind to another buffer of this count and type; None if the other ranks are needed.

        Both runs share side buffers, so only one may run at a time.
        """
        return None

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests, self.instructions, self.calls, self.parts, self.tests = (), (), [], [], []


@dataclass(frozen=True)
class Workspace:
    """A run's flat buffer, its result, and the copies around it."""

    buffer: Array
    result: Array
    before: Sequence[Callable[[], object]] = ()
    after: Sequence[Callable[[], object]] = ()


def alone(method: Callable[[Plan], T]) -> Callable[[Plan], T]:
    """Let one thread at a time call this method of a plan."""

    @wraps(method)
    def run(plan: Plan) -> T:
        only = plan.one_thread
        try:
            only.tokens.pop()  # ``run`` would cost 0.2 us more
        except IndexError:
            return only.run(method, plan)
        try:
            return only.context.run(method, plan)
        finally:
            only.tokens.append(None)

    return run


class RunningOperation:
    """A transfer that may be in progress, as monitors see it; messages use its ``name``.

    ``notes``, if given, records its whole runs with the labels ``said``.
    """

    after: Sequence[Callable[[], object]] = ()
    how = ""  # details for messages
    notes: Notes | None = None

    def __init__(self, run: InstructionRun, name: str, transport: Transport) -> None:
        self.run, self.name, self.transport, self.waits = run, name, transport, transport.waits
        self.running = self.started = False
        self.said: Mapping[str, Any] = {"collective": name}
        self.number = 0  # of its run among this rank's collectives
        self.broken: str | None = None

    def whole(self) -> None:
        self.running = self.started = True
        self.number = self.waits.number = self.waits.number + 1
        self.waits.now = self
        if self.notes is None:
            self.run.whole()
        else:
            self.run.whole(self.notes.begin(self.said, self.run.parts).append)
        self.finish()

    def finish(self) -> None:
        for call in self.after:
            call()
        self.running, self.waits.now = False, None
        self.transport.under_way.discard(self)

    def attempt(self, part: Callable[[], T]) -> T:
        """Run a part. After an error some messages may be incomplete, so no run starts again."""
        try:
            return part()
        except BaseException as error:
            self.broken = f"{type(error).__name__}{f' ({error})' if str(error) else ''}"
            self.transport.under_way.add(self)  # forever: messages may still use its memory
            self.waits.now = None
            raise

    def progress(self) -> tuple[int, ...]:
        return (self.number, *self.run.progress())

    def waits_for(self) -> str:
        message = self.run.waits_for()
        return message and f"{message} in {self.name}{self.how}"


class Plan(RunningOperation):
    """A prepared collective: call it, or start it, compute, and wait."""

    def __init__(self, run: InstructionRun, work: Workspace, call: Call, transport: Transport) -> None:
        super().__init__(run, call.collective, transport)
        self.call, self.result, self.before, self.after = call, work.result, work.before, work.after
        self.algorithm, self.how = call.algorithm, f" ({call.algorithm})"
        self.said = {"collective": call.collective, "algorithm": call.algorithm}
        self.segment_bytes = call.segment * call.x.dtype.itemsize
        self.freed, self.one_thread = False, transport.one_thread

    def noted(self, name: str, notes: Notes, **said: Any) -> None:
        self.name, self.notes, self.said = name, notes, {**self.said, **said}

    @alone
    def start(self) -> None:
        """Begin a run without waiting for other ranks (except in debug mode).

        On a GPU the first messages leave later, after the kernels that wrote the arrays.
        """
        self.check_idle()
        for call in self.before:
            call()
        self.attempt(self.begin)

    @alone
    def advance(self) -> bool:
        """Make progress without blocking; return whether the run is complete."""
        self.check_whole("advance")
        if self.running:
            if self.attempt(self.run.advance):
                self.attempt(self.finish)
            else:
                self.waits.now = self
        return not self.running

    @alone
    def wait(self) -> Array:
        """Block until the run is complete, with the interpreter lock released; return the result."""
        self.check_whole("wait")
        if not self.started:
            raise CollectiveError("wait() on a plan that was never started: its result does not exist yet")
        if self.running:
            self.waits.now = self
            self.attempt(self.run.wait)
            self.attempt(self.finish)
        return self.result

    def begin(self) -> None:
        self.running = self.started = True
        self.transport.under_way.add(self)
        self.number = self.waits.number = self.waits.number + 1
        self.run.start()

    @alone
    def __call__(self) -> Array:
        return self.once()

    def once(self) -> Array:
        """Run once; the caller excludes other threads."""
        self.check_idle()
        for call in self.before:
            call()
        self.attempt(self.whole)
        return self.result

    def check_whole(self, verb: str) -> None:
        if self.broken is not None:
            raise CollectiveError(f"{verb}() on a plan that was broken off by {self.broken}: make another one")

    def check_idle(self) -> None:
        self.check_whole("start")
        if self.freed:
            raise CollectiveError("start() on a plan that was freed: make another one")
        if self.running:
            raise CollectiveError("start() on a plan whose last run is not over: wait() for it first")

    def free(self) -> None:
        """Free requests and buffers. A run in progress is finished first, so no peer hangs."""
        if self.broken is not None or self.freed:  # after an error messages may still use both
            return
        if self.running:
            self.wait()
        self.run.free()
        self.freed = True

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Free the plan, unless an error interrupted a run: peers may never answer."""
        if error is None or not self.running:
            self.free()
