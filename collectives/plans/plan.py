"""Prepare a collective for one buffer and run it many times. All ranks start their plans in one order.

From ``start`` to the end of a run the arrays belong to the plan; the transport keeps it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import InstructionRun
from dear_mpi.collectives.plans.notes import Notes
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array

__all__ = ["Plan", "Workspace"]

T = TypeVar("T")


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

        On a GPU the first messages leave later, after the kernels that wrote the arrays. CollectiveError: the last run
        is incomplete or failed, the plan is freed, or another thread uses it.
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
