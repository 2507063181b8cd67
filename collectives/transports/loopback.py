"""Run ranks as threads of one process: tests, tutorials and debuggers need no launcher.

Sends are synchronous: programs that rely on MPI's buffering hang.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from dear_mpi.collectives.launch.neighbours import Neighbour, blame
from dear_mpi.collectives.program.errors import TransportError
from dear_mpi.collectives.program.hosts import Lane, Rates
from dear_mpi.collectives.transports.transport import OneThread, Request, Waits
from dear_mpi.kernels.array import Array, library_of, synchronize
from dear_mpi.kernels.calls import copier

T = TypeVar("T")
GRACE_S = 2.0  # s after an error, until computing ranks reach a call that raises


class Hub:
    def __init__(self, size: int, hosts: Sequence[int]) -> None:
        self.size, self.hosts = size, tuple(hosts)
        self.changed = threading.Condition()
        # By source, dest and tag, as long as requests live.
        self.lanes: WeakValueDictionary[tuple[int, int, int], Lane[Any, Any]] = WeakValueDictionary()
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)
        self.failure: str | None = None
        self.neighbours = [Neighbour(rank) for rank in range(size)]
        self.notes: list[tuple[int, int, Any]] = []

    def fail(self, message: str) -> None:
        with self.changed:
            self.failure = self.failure or message
            self.changed.notify_all()
        self.barrier.abort()


class LoopbackRequest:
    def __init__(self, hub: Hub, key: tuple[int, int, int], data: Array, *, sends: bool) -> None:
        self.hub, self.key, self.data = hub, key, data
        with hub.changed:
            self.lane = hub.lanes.setdefault(key, Lane())
        self.queue = self.lane.sends if sends else self.lane.receives
        self.active = False

    def Start(self) -> None:
        with self.hub.changed:
            self.active = True
            self.queue.append(self)
            for send, receive in self.lane.meetings():
                if send.data.nbytes != receive.data.nbytes:
                    raise TransportError(f"a send of {send.data.nbytes} B met a receive of {receive.data.nbytes} B")
                copier(receive.data, send.data)()
                synchronize(send.data)
                send.active = receive.active = False
                self.hub.changed.notify_all()

    def Wait(self) -> None:
        with self.hub.changed:
            self.hub.changed.wait_for(lambda: self.Test())

    def Test(self) -> bool:
        if self.active and self.hub.failure is not None:
            raise TransportError(self.hub.failure)
        return not self.active

    def Free(self) -> None:
        """Do nothing: a request holds only memory."""


class LoopbackTransport:
    name, native, spins = "loopback (threads)", None, False
    rates: Rates | None = None

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.hosts = hub, rank, hub.size, hub.hosts
        self.tags, self.one_thread = itertools.count(1), OneThread()
        self.kept, self.under_way = WeakSet[Any](), set[object]()
        self.waits = Waits(LoopbackMonitor(hub, rank))

    def allocate(self, nbytes: int) -> Array:
        return np.zeros(nbytes, np.uint8)

    def reach(self, array: Array) -> Sequence[Array] | None:
        arrays = self.gather_values(array)
        one_host = len(set(self.hosts)) == 1
        return arrays if one_host and all(library_of(other) == "numpy" for other in arrays) else None

    def counters(self) -> None:
        """Return None: a thread that spins holds up the others."""

    def takes(self, array: Array) -> bool:
        return True

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return LoopbackRequest(self.hub, (self.rank, peer, tag), data.view("u1"), sends=True)

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return LoopbackRequest(self.hub, (peer, self.rank, tag), data.view("u1"), sends=False)

    def next_tag(self) -> int:
        return next(self.tags)

    def gather_values(self, value: Any) -> list[Any]:
        self.hub.values[self.rank] = value
        self.barrier()
        values = list(self.hub.values)
        self.barrier()
        self.hub.values[self.rank] = None  # a hub keeps no array alive
        return values

    def same(self, number: int) -> bool:
        return len(set(self.gather_values(number))) == 1

    def latest(self, moment_s: float) -> float:
        return max(map(float, self.gather_values(moment_s)))

    def barrier(self, *, asleep: bool = False) -> None:
        meet = self.hub.barrier.wait
        try:
            meet() if asleep else self.waits.meet("barrier", meet)
        except threading.BrokenBarrierError:
            raise TransportError(self.hub.failure or "a rank ended early") from None

    def send_note(self, note: Any, tag: int) -> bool:
        self.hub.notes.append((self.rank, tag, note))
        return True

    def received_notes(self, tag: int) -> list[Any]:
        return [note for rank, its_tag, note in list(self.hub.notes) if rank != self.rank and its_tag == tag]

    def free(self) -> None:
        """Do nothing: the group holds only memory."""

    def abort(self, message: str) -> None:
        if self.hub.failure is None:  # later ones are consequences
            print(message, file=sys.stderr, flush=True)
        self.hub.fail(message)


class LoopbackMonitor:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def post(self, progress: tuple[int, ...] = (), waits: str = "") -> None:
        self.hub.neighbours[self.rank] = Neighbour(self.rank, progress=progress, waits=waits)

    def blame(self) -> str:
        return blame(self.hub.neighbours, self.hub.size)


def run_loopback(size: int, function: Callable[[LoopbackTransport], T], hosts: Sequence[int] | None = None) -> list[T]:
    """Call ``function(transport)`` on ``size`` threads; return the results in rank order.

    The first error of any rank is raised and releases the others. ``hosts``: each rank's host number; default: one.

    >>> run_loopback(3, lambda transport: sum(transport.gather_values(transport.rank)))
    [3, 3, 3]
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    hub = Hub(size, hosts or [0] * size)
    results: dict[int, T] = {}
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def body(rank: int) -> None:
        try:
            results[rank] = function(LoopbackTransport(hub, rank))
            ended.put(None)
        except BaseException as error:
            with hub.changed:  # others hear of this error after it is queued
                ended.put(error)
                hub.fail(f"rank {rank} failed: {error}")

    # Daemons do not keep the process alive after an error or Ctrl-C.
    threads = [threading.Thread(target=body, args=(rank,), name=f"rank_{rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            error = ended.get()
            if error is not None:
                raise error
    except BaseException:  # only this thread gets Ctrl-C
        hub.fail("interrupted")
        end_s = time.monotonic() + GRACE_S
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        raise
    return [results[rank] for rank in range(size)]
