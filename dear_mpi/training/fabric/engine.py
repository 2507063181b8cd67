"""Run all communication of training on one thread, while the main thread computes.

MPI makes no progress while Python is busy elsewhere, so overlap needs a thread that waits in MPI without the
interpreter lock. Plans run one at a time, in an order equal on all ranks (``order.py``).

A plan follows compute work launched before its start, and precedes later work. The thread blocks until a GPU has
produced the data: a rank needs two cores.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from queue import SimpleQueue

from dear_mpi.collectives.launch.launcher import ADVICE
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.ranks.streams import Streams
from dear_mpi.training.events import Log
from dear_mpi.training.fabric.order import Handle, Key, Order, Sequenced, Steps, Turn

GRACE_S = 2.0  # plans end by themselves after an error on all ranks, maybe not after one on a single rank


def check_process(process: int) -> None:
    """Raise a CollectiveError in a forked child: it lacks the engine's thread."""
    if os.getpid() != process:
        raise CollectiveError(f"process {os.getpid()} is a forked child of a rank, and cannot train: {ADVICE}")


class PlanHandle(Handle):
    """Represent running steps: their buffers belong to the engine until ``wait`` returns."""

    def __init__(self, key: Key, label: str, steps: Steps, streams: Streams) -> None:
        super().__init__(key, label, steps)
        self.streams, self.process = streams, os.getpid()
        self.ready, self.done = streams.compute.mark(), None  # after the buffer was written, and after the last step
        self.running = threading.Lock()  # held until it is over; an event would take ten times as many calls
        self.running.acquire()
        self.error: CollectiveError | None = None

    def wait(self) -> None:
        """Block until the steps have run; later launches on the compute stream see the result."""
        check_process(self.process)
        with self.running:  # and let other waiters pass
            pass
        if self.error is not None:
            raise CollectiveError(str(self.error)) from self.error
        self.streams.compute.wait(self.done)

    def end(self) -> None:
        """Release waiters; maybe twice, after a failure."""
        self.steps = None
        if self.running.locked():
            self.running.release()

    def run(self, log: Log, turn: Turn) -> None:
        """Run a turn's steps; ``wait`` raises their error."""
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
    def __init__(self, streams: Streams) -> None:
        self.streams, self.log, self.process = streams, Log(), os.getpid()
        self.order: Order[PlanHandle] = Order()
        self.queue: SimpleQueue[tuple[Turn, PlanHandle] | None] = SimpleQueue()
        # A daemon, so that a failed rank, and thus the job, ends while the engine still waits.
        self.thread = threading.Thread(target=self.serve, name="engine", daemon=True)
        self.thread.start()

    def submit(self, key: Key, label: str, steps: Steps) -> PlanHandle:
        """Run steps in each turn of ``key``; ``label`` names them in errors."""
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
        """Run plans in this order; ValueError within an iteration of another."""
        self.order = self.order.replaced(turns)

    def serve(self) -> None:
        """Run submitted plans; none after a failure, as the network is then unreliable."""
        failure: CollectiveError | None = None
        with ExitStack() as stack:
            try:
                stack.enter_context(self.streams.communication.use())
            except Exception as error:
                failure = CollectiveError(f"the engine's stream cannot be used: {error}")
            while (item := self.queue.get()) is not None:
                turn, handle = item
                if failure is None:
                    handle.run(self.log, turn)
                    failure = handle.error
                elif handle.error is None:
                    handle.error = CollectiveError(f"{handle.label} was not run, because before it {failure}")
                    handle.error.__cause__ = failure
                if turn.ends or failure is not None:
                    handle.end()
            if failure is None:  # plans are freed next: no kernel may read their memory
                communication = self.streams.communication
                communication.seconds(communication.mark(), communication.mark())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.queue.put(None)
        self.thread.join(None if error[0] is None else GRACE_S)
