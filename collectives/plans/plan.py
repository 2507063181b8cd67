"""A collective, prepared for one buffer and run many times.

The constructor plans, the call moves data. Between ``start`` and the end of a run the arrays belong to the
plan. All ranks start their plans in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.plans.execution import InstructionRun
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.kernels.array import Array

__all__ = ["Plan", "Workspace"]


@dataclass(frozen=True)
class Workspace:
    """The flat buffer that a run works on in place, what it returns, and what is copied or scaled around it."""

    buffer: Array
    result: Array
    before: Sequence[Callable[[], object]] = ()
    after: Sequence[Callable[[], object]] = ()


class Plan:
    """A prepared collective.

    Args:
        run: moves the data.
        work: where; its ``result`` is what every run returns.
        algorithm, segment_bytes: as given, or as a tuning table says.
    """

    def __init__(self, run: InstructionRun, work: Workspace, *, algorithm: str, segment_bytes: int) -> None:
        self.run, self.result = run, work.result
        self.before, self.after = work.before, work.after
        self.algorithm, self.segment_bytes = algorithm, segment_bytes
        self.running = self.started = self.freed = False

    def start(self) -> None:
        """Begin a run. It waits for nobody; only in debug mode it waits for all ranks.

        On a GPU it does not even wait for the kernels that wrote the arrays. The first messages leave in the first
        ``advance`` after those kernels, or in ``wait``.

        Raises:
            CollectiveError: the last run is not over, or the plan was freed.
        """
        if self.freed:
            raise CollectiveError("start() on a plan that was freed: make another one")
        if self.running:
            raise CollectiveError("start() on a plan whose last run is not over: wait() for it first")
        for call in self.before:
            call()
        self.running = self.started = True
        self.run.start()

    def advance(self) -> bool:
        """Do what can be done without blocking; return whether the run is over."""
        if self.running and self.run.advance():
            self.finish()
        return not self.running

    def wait(self) -> Array:
        """Block until the run is over, with the interpreter lock released; return the result.

        Raises:
            CollectiveError: the plan was never started.
        """
        if not self.started:
            raise CollectiveError("wait() on a plan that was never started: its result does not exist yet")
        if self.running:
            self.run.wait()
            self.finish()
        return self.result

    def finish(self) -> None:
        for call in self.after:
            call()
        self.running = False

    def __call__(self) -> Array:
        """One whole run; the result; raises as ``start``."""
        if self.running or self.freed:
            self.start()  # raises, and says why
        for call in self.before:
            call()
        self.running = self.started = True
        self.run.whole()
        self.finish()
        return self.result

    def free(self) -> None:
        """Give requests and buffers back. A plan that is under way is finished first, so that no peer hangs."""
        if self.running:
            self.wait()
        if not self.freed:
            self.run.free()
        self.freed = True

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Free the plan; after an error only if it is not under way, for then the peers may never answer."""
        if error is None or not self.running:
            self.free()
