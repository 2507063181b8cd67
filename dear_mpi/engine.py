"""The engine: one thread that carries out all communication of training while the main thread computes.

MPI moves nothing while Python is busy elsewhere, so overlap needs a thread that sits inside MPI. It runs plans one
after the other, in the order in which they were started; as all ranks start the same plans in the same order, the
order on the wire is the same everywhere by construction. While it waits the interpreter lock is free.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from dear_mpi.collectives.errors import CollectiveError
from dear_mpi.collectives.plan import Plan

__all__ = ["Engine", "Handle"]


GRACE_S = 2.0  # an error on all ranks alike leaves plans that end by themselves; one on a single rank does not


class Handle:
    """A plan under way: the buffer is the plan's until ``wait`` has returned."""

    def __init__(self, plan: Plan, label: str) -> None:
        self.plan, self.label = plan, label
        self.over = threading.Event()
        self.error: CollectiveError | None = None

    def wait(self) -> None:
        """Block until the plan has run.

        Raises:
            CollectiveError: it failed; the message says which plan.
        """
        self.over.wait()
        if self.error is not None:
            raise CollectiveError(str(self.error)) from self.error


class Engine:
    """Runs plans on a thread of its own; a context manager that ends the thread."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Handle | None] = SimpleQueue()
        # A daemon, so that a rank that failed elsewhere ends (and with it the job) though the engine still waits.
        self.thread = threading.Thread(target=self.serve, name="engine", daemon=True)
        self.thread.start()

    def start(self, plan: Plan, label: str) -> Handle:
        """Run a plan after those that were started before; ``label`` names it in errors."""
        handle = Handle(plan, label)
        self.queue.put(handle)
        return handle

    def serve(self) -> None:
        failure: CollectiveError | None = None
        while (handle := self.queue.get()) is not None:
            if failure is not None:  # nothing on the wire can be relied on any more
                handle.error = CollectiveError(f"{handle.label} was not run, because before it {failure}")
            else:
                handle.error = failure = carry_out(handle)
            handle.over.set()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread when it has run what was started; after an error, do not wait for ever."""
        self.queue.put(None)
        self.thread.join(None if error[0] is None else GRACE_S)


def carry_out(handle: Handle) -> CollectiveError | None:
    """Run a plan; what went wrong, for the main thread to raise where it waits."""
    try:
        handle.plan()
    except BaseException as error:
        failure = CollectiveError(f"{handle.label} failed: {error}")
        failure.__cause__ = error
        return failure
    return None
