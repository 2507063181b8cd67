"""The engine: one thread that carries out all communication of training while the main thread computes.

MPI moves nothing while Python is busy elsewhere, so overlap needs a thread that sits inside MPI. It runs plans one
after the other, in the order in which they were started or in one that was decided in advance (``order.py``): so the
order on the network is the same on all ranks by construction. While it waits the interpreter lock is free.

On a GPU the engine has a stream of its own. A plan begins after what the main thread had launched on the compute stream
when it was started, and the compute stream goes on after the plan: neither waits for anything else. The engine's thread
does block, in the plan, until the device has reached what MPI is to send: a rank needs two cores there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from queue import SimpleQueue

from dear_mpi.collectives.launch.launcher import ADVICE
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.ranks.streams import Streams
from dear_mpi.training.fabric.order import Handle, Key, Order, Sequenced, Step, Turn
from dear_mpi.training.log.log import Log

GRACE_S = 2.0  # after an error on all ranks, plans still end by themselves; after one on a single rank, they may not


def check_process(process: int) -> None:
    """CollectiveError in a forked child of this process: it has no engine's thread, and would wait for ever."""
    if os.getpid() != process:
        raise CollectiveError(f"process {os.getpid()} is a forked child of a rank, and cannot train: {ADVICE}")


class PlanHandle(Handle):
    """A plan under way: the buffer is the plan's until ``wait`` has returned."""

    def __init__(self, key: Key, label: str, steps: Callable[[Turn], Sequence[Step]], streams: Streams) -> None:
        super().__init__(key, label, steps)
        self.streams, self.process = streams, os.getpid()
        self.ready, self.done = streams.compute.mark(), None  # after what wrote the buffer, and after the last step
        self.running = threading.Lock()  # until it is over; an event would take ten times as many calls
        self.running.acquire()
        self.error: CollectiveError | None = None

    def wait(self) -> None:
        """Block until the plan has run; what is launched on the compute stream from now on sees its result.

        CollectiveError, which names the plan, if it failed.
        """
        check_process(self.process)
        with self.running:  # and let others wait, too
            pass
        if self.error is not None:
            raise CollectiveError(str(self.error)) from self.error
        self.streams.compute.wait(self.done)

    def end(self) -> None:
        """It is over; after a failure this may be said twice."""
        self.steps = None
        if self.running.locked():
            self.running.release()

    def run(self, log: Log, turn: Turn) -> None:
        """Run the steps of a turn, and keep what went wrong for the main thread to raise where it waits."""
        communication, what = self.streams.communication, self.label
        try:
            assert self.steps is not None, "it is not over"
            communication.wait(self.ready)
            self.done, since = communication.mark(), self.ready
            for step in self.steps(turn):
                what = f"update of {step.what}" if step.kind == "update" else str(step.what)
                begin = self.done
                step.act()
                self.done = communication.mark()
                log.carried(step.kind, step.number, begin, self.done, step.what, since=since)
                since = None
        except BaseException as error:
            self.error = CollectiveError(f"{what} failed: {error}")
            self.error.__cause__ = error


class Engine:
    """Runs plans on a thread of its own; a context manager that ends the thread. It writes into ``log`` what it did."""

    def __init__(self, streams: Streams) -> None:
        self.streams, self.log, self.process = streams, Log(), os.getpid()
        self.order: Order[PlanHandle] = Order()
        self.queue: SimpleQueue[tuple[Turn, PlanHandle] | None] = SimpleQueue()
        # A daemon, so that a rank that failed elsewhere ends (and with it the job) though the engine still waits.
        self.thread = threading.Thread(target=self.serve, name="engine", daemon=True)
        self.thread.start()

    def start(self, plan: Callable[[], object], label: str, key: Key = ("plan", 0)) -> PlanHandle:
        """Run a plan when its turn has come, which ``key`` says; ``label`` names it in errors."""
        return self.submit(key, label, lambda turn: [Step(*key, label, plan)])

    def submit(self, key: Key, label: str, steps: Callable[[Turn], Sequence[Step]]) -> PlanHandle:
        """The same with the steps of each turn."""
        check_process(self.process)
        handle = PlanHandle(key, label, steps, self.streams)
        for item in self.order.submit(key, handle):
            self.queue.put(item)
        return handle

    def finished(self, key: Key, label: str) -> PlanHandle:
        handle = PlanHandle(key, label, lambda turn: [], self.streams)
        handle.done = handle.ready
        handle.end()
        return handle

    def follow(self, turns: Sequenced | None) -> None:
        """From now on run plans in this order, see ``Order``; ValueError if an iteration of another is not over."""
        self.order = self.order.replaced(turns)

    def serve(self) -> None:
        """Run what comes; after a failure nothing on the network can be relied on, and nothing is run."""
        failure: str | None = None
        with ExitStack() as stack:
            try:
                stack.enter_context(self.streams.communication.use())
            except Exception as error:
                failure = f"the engine's stream cannot be used: {error}"
            while (item := self.queue.get()) is not None:
                turn, handle = item
                if failure is None:
                    handle.run(self.log, turn)
                    failure = None if handle.error is None else str(handle.error)
                elif handle.error is None:
                    handle.error = CollectiveError(f"{handle.label} was not run, because before it {failure}")
                if turn.ends or failure is not None:
                    handle.end()
            if failure is None:  # plans are freed next: no kernel may still read their memory
                communication = self.streams.communication
                communication.seconds(communication.mark(), communication.mark())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread when it has run what was started; after an error, do not wait for ever."""
        self.queue.put(None)
        self.thread.join(None if error[0] is None else GRACE_S)
