"""Run ranks as threads of one process: tests, tutorials and debuggers need no launcher.

Sends are synchronous: programs that rely on MPI's buffering hang.
"""

import itertools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from dear_mpi.collectives.launch.neighbours import Neighbour, blame
from dear_mpi.collectives.program.errors import AgreedError, RanksLost, TransportError, lost_in, name_ranks
from dear_mpi.collectives.program.hosts import Lane, Rates
from dear_mpi.collectives.transports.elastic import Elastic
from dear_mpi.collectives.transports.transport import OneThread, Request, Waits
from dear_mpi.kernels.array import Array, library_of, synchronize
from dear_mpi.kernels.calls import copier

T = TypeVar("T")
GRACE_S = 2.0  # s after an error, until computing ranks reach a call that raises


class Hub:
    """The meeting point of some ranks: ``members``, by their numbers in the job. Survivors move to a new hub."""

    def __init__(self, hosts: Sequence[int], members: Sequence[int], before: "Hub | None" = None) -> None:
        self.size, self.hosts, self.members = len(members), tuple(hosts), tuple(members)
        self.changed: threading.Condition = threading.Condition() if before is None else before.changed
        self.gone: dict[int, str] = {} if before is None else before.gone  # members of the job, and why; "": at the end
        self.family: list[Hub] = [] if before is None else before.family
        self.family.append(self)
        # By source, dest and tag, as long as requests live.
        self.lanes: WeakValueDictionary[tuple[int, int, int], Lane[Any, Any]] = WeakValueDictionary()
        self.values: list[Any] = [None] * self.size
        self.barrier = threading.Barrier(self.size)
        self.failure: str | None = None
        self.revoked = False
        self.votes = defaultdict[int, dict[int, int]](dict)  # by the number of the decision, and rank
        self.decided: dict[int, Any] = {}
        self.neighbours = [Neighbour(rank) for rank in range(self.size)]
        self.notes: list[tuple[int, int, Any]] = []

    def fail(self, message: str) -> None:
        """End all ranks of the job."""
        with self.changed:
            for hub in self.family:
                hub.failure = hub.failure or message
                hub.barrier.abort()
            self.changed.notify_all()

    def lose(self, rank: int, message: str) -> None:
        """End one rank of an elastic job."""
        with self.changed:
            self.gone.setdefault(rank, message)
            for hub in self.family:
                if message and rank in hub.members:
                    hub.barrier.abort()
            self.changed.notify_all()

    def revoke(self) -> None:
        with self.changed:
            self.revoked = True
            self.barrier.abort()
            self.changed.notify_all()

    @property
    def dead(self) -> list[int]:
        return [rank for rank in self.members if self.gone.get(rank)]

    def error(self) -> TransportError | None:
        """Return why messages can no longer be exchanged, if so."""
        if self.failure is not None:
            return TransportError(self.failure)
        if not self.revoked and not (self.gone and self.dead):
            return None
        why = "; ".join(f"rank {rank}: {self.gone[rank]}" for rank in self.dead)
        return RanksLost(f"{name_ranks(self.dead)} died ({why})" if why else "another rank was lost", ranks=self.dead)

    def decide(self, number: int, rank: int, vote: int, conclude: Callable[[dict[int, int]], Any]) -> Any:
        """Return what one of the living ranks concludes from their votes, once all have voted."""
        with self.changed:
            votes = self.votes[number]
            votes[rank] = vote
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.failure or {*self.members}.difference(self.gone) <= votes.keys())
            if self.failure:
                raise TransportError(self.failure)
            if number not in self.decided:
                self.decided[number] = conclude(votes)
            return self.decided[number]


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
        if self.active and (error := self.hub.error()) is not None:
            raise error
        return not self.active

    def Free(self) -> None:
        """Do nothing: a request holds only memory."""


class LoopbackTransport:
    """A rank's view of a hub; ``revoke``, ``agree`` and ``shrink`` are for elastic jobs, see ``elastic.py``."""

    name, native, spins = "loopback (threads)", None, False
    rates: Rates | None = None

    def __init__(self, hub: Hub, rank: int, waits: Waits | None = None) -> None:
        self.hub, self.rank, self.size, self.hosts, self.members = hub, rank, hub.size, hub.hosts, hub.members
        self.decisions = itertools.count()
        self.tags, self.one_thread = itertools.count(1), OneThread()
        self.kept, self.under_way = WeakSet[Any](), set[object]()
        self.waits = waits or Waits(LoopbackMonitor(hub, rank))

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
            raise self.hub.error() or TransportError("a rank ended early") from None

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

    def revoke(self) -> None:
        self.hub.revoke()

    def agree(self, mask: int) -> int:
        def conclude(votes: dict[int, int]) -> int | None:
            return None if self.hub.dead else reduce(and_, votes.values())

        found: int | None = self.hub.decide(next(self.decisions), self.members[self.rank], mask, conclude)
        if found is None:
            raise RanksLost(f"{name_ranks(self.hub.dead)} died", ranks=self.hub.dead)
        return found

    def shrink(self) -> "LoopbackTransport":
        def conclude(votes: dict[int, int]) -> Hub:
            alive = [rank for rank, member in enumerate(self.members) if member not in self.hub.gone]
            return Hub([self.hosts[rank] for rank in alive], [self.members[rank] for rank in alive], self.hub)

        me = self.members[self.rank]
        hub: Hub = self.hub.decide(next(self.decisions), me, 0, conclude)
        return LoopbackTransport(hub, hub.members.index(me), self.waits)

    def die(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        self.hub.lose(self.members[self.rank], message.splitlines()[-1])


class LoopbackMonitor:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def post(self, progress: tuple[int, ...] = (), waits: str = "") -> None:
        self.hub.neighbours[self.rank] = Neighbour(self.rank, progress=progress, waits=waits)

    def stopped(self) -> list[Neighbour]:
        return []  # threads cannot be

    def blame(self) -> str:
        return blame(self.hub.neighbours, self.hub.size)


def run_loopback(
    size: int, function: Callable[[Any], T], hosts: Sequence[int] | None = None, *, elastic: bool = False
) -> list[T]:
    """Call ``function(transport)`` on ``size`` threads; return the results in rank order.

    The first error of any rank is raised and releases the others. ``hosts``: each rank's host number; default: one.
    ``elastic``: a rank that raises ends only itself; results come from survivors.

    >>> run_loopback(3, lambda transport: sum(transport.gather_values(transport.rank)))
    [3, 3, 3]
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    hub = Hub(hosts or [0] * size, range(size))
    results: dict[int, T] = {}
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def body(rank: int) -> None:
        transport = LoopbackTransport(hub, rank)
        try:
            results[rank] = function(Elastic(transport) if elastic else transport)
            hub.lose(rank, "")
            ended.put(None)
        except BaseException as error:
            if elastic and not isinstance(error, AgreedError) and lost_in(error) is None:
                hub.lose(rank, f"{type(error).__name__}: {error}")
                deaths.append(error)
                ended.put(error if len(deaths) == size else None)
                return
            with hub.changed:  # others hear of this error after it is queued
                ended.put(error)
                hub.fail(f"rank {rank} failed: {error}")

    deaths: list[BaseException] = []
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
    return [results[rank] for rank in sorted(results)]
