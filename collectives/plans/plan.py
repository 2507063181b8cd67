"""Run a prepared collective many times. All ranks start their plans in one order.

A runner binds all requests, views and calls, so a run slices and allocates nothing but noted times (``notes.py``).

    whole                   all calls in order: a third faster than ``start`` and ``wait`` for small collectives
    start, advance, wait    begin, continue without blocking, finish

From ``start`` to the end of a run the arrays belong to the plan; the transport keeps it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from operator import length_hint
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dear_mpi.collectives.plans.call import Task
from dear_mpi.collectives.plans.notes import WAITS, Notes, Part
from dear_mpi.collectives.program.errors import CollectiveError, TransportError
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, Event

__all__ = ["Plan"]

T = TypeVar("T")
Action: TypeAlias = Callable[[], object]
AroundBarrier: TypeAlias = tuple[Sequence[Action], Sequence[Action]]  # calls before and after a run's only barrier


class Act(NamedTuple):
    part: Part
    call: Action
    test: Callable[[], bool] | None = None


def waiting(part: Part, wait: Request | Event) -> Act:
    return Act(part, wait.Wait, wait.Test)


class InstructionRun:
    """Make calls in order, blocking or polling; a TransportError names step and peer."""

    def __init__(self, rank: int, acts: Sequence[Act], requests: Sequence[Request]) -> None:
        self.rank, self.requests = rank, requests
        self.parts = [act.part for act in acts]
        self.calls = [act.call for act in acts]
        self.tests = [act.test for act in acts]
        self.position = 0  # of the next call, unless calls are being made
        self.left: Iterator[Action] | None = None

    def start(self) -> None:
        """Make all calls before the first wait."""
        self.position, self.left = 0, None
        while self.position < len(self.calls) and self.tests[self.position] is None:
            self.calls[self.position]()
            self.position += 1

    def advance(self) -> bool:
        try:
            while self.position < len(self.calls):
                test = self.tests[self.position]
                if test is None:
                    self.calls[self.position]()
                elif not test():
                    return False
                self.position += 1
        except Exception as error:
            raise self.failure(error) from error
        return True

    def wait(self) -> None:
        self.go(self.calls[self.position :])

    def whole(self, note: Callable[[float], object] | None = None) -> None:
        self.go(self.calls, note)

    def go(self, calls: Sequence[Action], note: Callable[[float], object] | None = None) -> None:
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
        self.position, self.left = len(self.calls), None

    def progress(self) -> int:
        left = self.left  # read once: a watchdog calls from another thread
        return self.position if left is None else max(len(self.calls) - length_hint(left) - 1, 0)

    def waits_for(self) -> str:
        position, parts = self.progress(), self.parts
        return str(parts[position]) if position < len(parts) and parts[position].kind in WAITS else ""

    def failure(self, error: Exception) -> TransportError:
        place = self.waits_for() or f"after call {self.progress()} of {len(self.calls)}"
        return TransportError(f"rank {self.rank}, {place}: {error}")

    def on(self, task: Task) -> InstructionRun | None:
        """Bind to another buffer; None if that needs the other ranks.

        Both share side buffers: only one may run at a time.
        """
        return None

    def around_barrier(self) -> Iterator[AroundBarrier] | None:
        """Return the calls around the barrier of each coming run, if it has one, and a vote may take its place."""
        return None

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests, self.calls, self.parts, self.tests = (), [], [], []


def alone(method: Callable[[Plan], T]) -> Callable[[Plan], T]:
    """Let one thread at a time call this method."""

    @wraps(method)
    def run(plan: Plan) -> T:
        only = plan.one_thread
        try:
            only.tokens.pop()  # ``run`` costs 0.2 us more
        except IndexError:
            return only.run(method, plan)
        try:
            return only.context.run(method, plan)
        finally:
            only.tokens.append(None)

    return run


class RunningOperation:
    """A transfer that may be in progress, as monitors see it.

    ``notes``, if given, records whole runs with the labels ``said``.
    """

    before: Sequence[Callable[[], object]] = ()
    after: Sequence[Callable[[], object]] = ()
    how = ""  # details for messages
    notes: Notes | None = None

    def __init__(self, run: InstructionRun, name: str, transport: Transport) -> None:
        self.run, self.name, self.transport, self.waits = run, name, transport, transport.waits
        self.running = self.started = self.freed = False
        self.said: Mapping[str, Any] = {"collective": name}
        self.number = 0  # of its run among this rank's collectives
        self.broken: str | None = None

    def whole(self) -> None:
        """Run from beginning to end. Small collectives take a microsecond: here each call counts."""
        if self.running or self.freed:  # a broken one is running
            self.check_idle()
        for call in self.before:
            call()
        waits = self.waits
        self.running = self.started = True
        self.number = waits.number = waits.number + 1
        waits.now = self
        try:
            if self.notes is None:
                self.run.whole()
            else:
                self.run.whole(self.notes.begin(self.said, self.run.parts).append)
            for call in self.after:
                call()
        except BaseException as error:
            self.break_off(error)
            raise
        self.running, waits.now = False, None

    def check_whole(self, verb: str) -> None:
        if self.broken is not None:
            raise CollectiveError(f"{verb}() on a plan that was broken off by {self.broken}: make another one")

    def check_idle(self) -> None:
        self.check_whole("start")
        if self.freed:
            raise CollectiveError("start() on a plan that was freed: make another one")
        if self.running:
            raise CollectiveError("start() on a plan whose last run is not over: wait() for it first")

    def finish(self) -> None:
        for call in self.after:
            call()
        self.running, self.waits.now = False, None
        self.transport.under_way.discard(self)

    def attempt(self, part: Callable[[], T]) -> T:
        """After an error messages may be incomplete: no run starts again."""
        try:
            return part()
        except BaseException as error:
            self.break_off(error)
            raise

    def break_off(self, error: BaseException) -> None:
        self.broken = f"{type(error).__name__}{f' ({error})' if str(error) else ''}"
        self.transport.under_way.add(self)  # forever: messages may still use its memory
        self.waits.now = None

    def progress(self) -> tuple[int, ...]:
        return self.number, self.run.progress()

    def waits_for(self) -> str:
        message = self.run.waits_for()
        return message and f"{message} in {self.name}{self.how}"


class Plan(RunningOperation):
    """A prepared collective: call it, or start, compute, and wait."""

    def __init__(self, run: InstructionRun, task: Task) -> None:
        call, transport = task.call, task.transport
        super().__init__(run, call.collective, transport)
        self.task, self.call, self.result, self.before, self.after = task, call, task.result, task.before, task.after
        self.algorithm, self.how = call.algorithm, f" ({call.algorithm})"
        self.said = {"collective": call.collective, "algorithm": call.algorithm}
        self.segment_bytes = call.segment * call.x.dtype.itemsize
        self.one_thread = transport.one_thread

    def noted(self, name: str, notes: Notes, **said: Any) -> None:
        self.name, self.notes, self.said = name, notes, {**self.said, **said}

    @alone
    def start(self) -> None:
        """Begin a run without waiting for other ranks (except in debug mode).

        On a GPU the first messages leave after the kernels that wrote the arrays.
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
        """Block with the interpreter lock released; return the result."""
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

    def __call__(self) -> Array:
        only = self.one_thread  # as ``alone``, with one call less
        try:
            only.tokens.pop()
        except IndexError:
            only.run(self.whole)
            return self.result
        try:
            only.context.run(self.whole)
        finally:
            only.tokens.append(None)
        return self.result

    def free(self) -> None:
        """Free requests and buffers, after any run in progress: no peer hangs."""
        if self.broken is not None or self.freed:  # messages may still use both
            return
        if self.running:
            self.wait()
        self.run.free()
        self.task, self.freed = replace(self.task, reached=None), True  # views of other ranks' memory

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """After an error the plan is not freed: peers may never answer."""
        if error is None or not self.running:
            self.free()
