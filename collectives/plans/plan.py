"""A collective, prepared for one buffer and run many times. All ranks start their plans in the same order.

Between ``start`` and the end of a run the arrays belong to the plan, which the transport keeps alive meanwhile.
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
    """The flat buffer that a run works on in place, what it returns, and what is copied or scaled around it."""

    buffer: Array
    result: Array
    before: Sequence[Callable[[], object]] = ()
    after: Sequence[Callable[[], object]] = ()


def alone(method: Callable[[Plan], T]) -> Callable[[Plan], T]:
    """The method of a plan, for one thread at a time."""

    @wraps(method)
    def run(plan: Plan) -> T:
        only = plan.one_thread
        try:
            only.tokens.pop()  # ``run`` would take a fifth of a microsecond more
        except IndexError:
            return only.run(method, plan)  # raises, and says why
        try:
            return only.context.run(method, plan)
        finally:
            only.tokens.append(None)

    return run


class Carried:
    """What moves data on a transport, as one that waits for it sees it; ``name`` is what messages call it.

    Its whole runs are noted in ``notes``, if it is given any, with what is ``said`` of it.
    """

    after: Sequence[Callable[[], object]] = ()
    how = ""  # more about it, for messages
    notes: Notes | None = None

    def __init__(self, run: InstructionRun, name: str, transport: Transport) -> None:
        self.run, self.name, self.transport, self.waits = run, name, transport, transport.waits
        self.running = self.started = False
        self.said: Mapping[str, Any] = {"collective": name}
        self.number = 0  # of its run, among the collectives of this rank
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

    def carry(self, part: Callable[[], T]) -> T:
        """Do a part of a run. After an error it is unknown which messages are over: then no run is started again."""
        try:
            return part()
        except BaseException as error:
            self.broken = f"{type(error).__name__}{f' ({error})' if str(error) else ''}"
            self.transport.under_way.add(self)  # for good: messages may still use its memory
            self.waits.now = None
            raise

    def progress(self) -> tuple[int, ...]:
        return (self.number, *self.run.progress())

    def waits_for(self) -> str:
        message = self.run.waits_for()
        return message and f"{message} in {self.name}{self.how}"


class Plan(Carried):
    """A prepared collective: ``run`` moves the data in the memory of ``work``."""

    def __init__(self, run: InstructionRun, work: Workspace, call: Call, transport: Transport) -> None:
        super().__init__(run, call.collective, transport)
        self.call, self.result, self.before, self.after = call, work.result, work.before, work.after
        self.algorithm, self.how = call.algorithm, f" ({call.algorithm})"
        self.said = {"collective": call.collective, "algorithm": call.algorithm}
        self.segment_bytes = call.segment * call.x.dtype.itemsize
        self.freed, self.one_thread = False, transport.one_thread

    def noted(self, name: str, notes: Notes, **said: Any) -> None:
        """From now on call it so, and note what its whole runs do inside, with what else is to be said of it."""
        self.name, self.notes, self.said = name, notes, {**self.said, **said}

    @alone
    def start(self) -> None:
        """Begin a run. It waits for no other rank, except in debug mode, and on a GPU for no kernel that wrote the
        arrays: the first messages leave in the first ``advance`` after those, or in ``wait``.

        CollectiveError: the last run is not over or was broken off, the plan was freed, or another thread is inside.
        """
        self.check_idle()
        for call in self.before:
            call()
        self.carry(self.begin)

    @alone
    def advance(self) -> bool:
        """Do what can be done without blocking; return whether the run is over."""
        self.check_whole("advance")
        if self.running:
            if self.carry(self.run.advance):
                self.carry(self.finish)
            else:
                self.waits.now = self
        return not self.running

    @alone
    def wait(self) -> Array:
        """Block until the run is over, with the interpreter lock released; return the result. CollectiveError: the plan
        was never started, or a run was broken off."""
        self.check_whole("wait")
        if not self.started:
            raise CollectiveError("wait() on a plan that was never started: its result does not exist yet")
        if self.running:
            self.waits.now = self
            self.carry(self.run.wait)
            self.carry(self.finish)
        return self.result

    def begin(self) -> None:
        self.running = self.started = True
        self.transport.under_way.add(self)
        self.number = self.waits.number = self.waits.number + 1
        self.run.start()

    @alone
    def __call__(self) -> Array:
        """One whole run; the result; raises as ``start``."""
        return self.once()

    def once(self) -> Array:
        """A whole run; the caller makes sure that no other thread uses the transport."""
        self.check_idle()
        for call in self.before:
            call()
        self.carry(self.whole)
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
        """Give requests and buffers back. A plan that is under way is finished first, so that no peer hangs."""
        if self.broken is not None or self.freed:  # broken off, it keeps both: messages may still be under way
            return
        if self.running:
            self.wait()
        self.run.free()
        self.freed = True

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Free the plan; after an error only if it is not under way, for then the peers may never answer."""
        if error is None or not self.running:
            self.free()
