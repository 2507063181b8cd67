"""What comes before what: vector clocks of streams and of the host, and the accesses that they must order.

Operations of the stand-in run at once, in the order in which the program calls them, so values are always those of one
legal execution. Whether another execution is legal too is what this module decides, as a race detector does:

- A **lane** is a stream. Its operations have positions 1, 2, ...; its clock says, for every lane, up to which position
  operations are over before the lane's next one begins.
- An event carries a copy of the clock of the stream that recorded it; waiting for it joins that copy.
- The **host** has one clock for all threads. Threads hand work to each other through queues and locks that cannot be
  seen here; taking their knowledge as shared never gives a false alarm, and misses a thread that uses what another one
  waited for without asking it. What the host knows flows to every lane at its next operation.
- Every access is (bytes, read or write, lane, position). Two that overlap, one of them a write, must be ordered.
- A **use** is the host's, or MPI's, access that goes on until it is ended: nothing on a device can be ordered after it.

The null stream is CUDA's legacy one: ordered with every blocking stream, not with those made with non_blocking=True.
"""

import itertools
import threading
from contextlib import contextmanager
from dataclasses import dataclass

lock = threading.RLock()
races = []  # the message of every race, also of those whose error somebody caught
freed_in_use = []  # memory given back while a stream other than the one that made it had not been waited for
host = {}  # the host's clock: lane number -> position
lanes = []
before_host_learns = []  # calls: what became of memory before, is judged by what the host knew then
numbers = itertools.count()
local = threading.local()


class RaceError(AssertionError):
    """Two accesses to the same bytes that nothing orders."""


class Lane:
    def __init__(self, name, device, *, null=False, blocking=True):
        with lock:
            self.number, self.name, self.device = next(numbers), name, device
            self.null, self.blocking = null, blocking
            self.clock = {self.number: 0}
            lanes.append(self)

    @property
    def position(self):
        return self.clock[self.number]

    def catch_up(self):
        """Learn what precedes this lane's next operation without an event: the host, and the null stream's rule."""
        join(self.clock, host)
        if self.blocking:
            for other in lanes:
                if other.blocking and other.null != self.null and other.device == self.device:
                    join(self.clock, other.clock)


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes [start, stop) touched by an operation of a lane."""

    start: int
    stop: int
    write: bool
    lane: Lane
    position: int
    name: str

    def known(self, clock):
        return self.position <= clock.get(self.lane.number, 0)


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes [start, stop) in the hands of the host or of MPI, from now until ``end_use``."""

    start: int
    stop: int
    write: bool
    name: str


def join(clock, other):
    """Know in ``clock`` what ``other`` knows."""
    for number, position in other.items():
        if clock.get(number, 0) < position:
            clock[number] = position


nulls = {}


def null_lane(device):
    with lock:
        if device not in nulls:
            nulls[device] = Lane("the null stream", device, null=True)
        return nulls[device]


@contextmanager
def unaccounted():
    """What this thread launches and waits for is not the program's: a transport moves bytes, as MPI would, unseen."""
    before, local.hidden = getattr(local, "hidden", False), True
    try:
        yield
    finally:
        local.hidden = before


def operation(name, lane, accesses):
    """Account an operation that is about to run; ``accesses`` are (shadow, start, stop, write).

    Raises:
        RaceError: one of them is not ordered after an earlier one that it conflicts with.
    """
    if getattr(local, "hidden", False):
        return
    with lock:
        lane.catch_up()
        lane.clock[lane.number] += 1
        for shadow, start, stop, write in accesses:
            check_operation(shadow, Access(start, stop, write, lane, lane.position, name))
        for shadow, start, stop, write in sorted(accesses, key=lambda access: access[3]):
            remember(shadow, Access(start, stop, write, lane, lane.position, name))


def check_operation(shadow, new):
    for old in overlapping(shadow.records, new):
        if not old.known(new.lane.clock):
            fail(shadow, new, f"{new.name} on {new.lane.name}", old, f"{old.name} on {old.lane.name}")
    for use in overlapping(shadow.uses, new):
        fail(shadow, new, f"{new.name} on {new.lane.name}", use, f"{use.name}, which is under way")


def check_host(shadow, start, stop, write, name):
    """The host touches bytes now.

    Raises:
        RaceError: an operation on them may still run, or they are in use.
    """
    if start >= stop:
        return
    new = Use(start, stop, write, name)
    with lock:
        for old in overlapping(shadow.records, new):
            if not old.known(host):
                fail(shadow, new, name, old, f"{old.name} on {old.lane.name}")
        for use in overlapping(shadow.uses, new):
            fail(shadow, new, name, use, f"{use.name}, which is under way")


def begin_use(shadow, start, stop, write, name):
    """The host, or MPI, has these bytes from now on."""
    with lock:
        check_host(shadow, start, stop, write, name)
        use = Use(start, stop, write, name)
        shadow.uses.append(use)
        return use


def end_use(shadow, use):
    with lock:
        shadow.uses[:] = [other for other in shadow.uses if other is not use]


def overlapping(olds, new):
    return [old for old in olds if old.start < new.stop and new.start < old.stop and (old.write or new.write)]


def remember(shadow, new):
    """Keep an access, and forget those that it or the host's knowledge makes needless, so that history stays short.

    What the host knows precedes all that follows. A write follows all that it covers, so whatever is ordered after the
    write is ordered after them; a read stands for earlier reads of its own lane.
    """
    if new.start >= new.stop:
        return

    def needless(old):
        covered = new.start <= old.start and old.stop <= new.stop
        return old.known(host) or (covered and (new.write or (old.lane is new.lane and not old.write)))

    shadow.records[:] = [old for old in shadow.records if not needless(old)]
    shadow.records.append(new)


def host_joins(clock):
    """The host has waited for what ``clock`` knows."""
    if getattr(local, "hidden", False):
        return
    with lock:
        for prepare in before_host_learns:
            prepare()
        join(host, clock)


def host_knows(clock):
    with lock:
        return all(position <= host.get(number, 0) for number, position in clock.items())


def freed(shadow):
    """Memory was given back. CuPy's pool hands it at once to the stream that made it, the host's to anybody."""
    maker = dict(host)
    if shadow.lane is not None:
        join(maker, shadow.lane.clock)
    late = [old for old in shadow.records if not old.known(maker)]
    if late:
        who = f"{late[0].name} on {late[0].lane.name}"
        freed_in_use.append(f"{shadow.kind} memory of {shadow.nbytes} bytes was given back while in use by {who}")
    freed_in_use.extend(f"{shadow.kind} memory was given back during {use.name}" for use in shadow.uses)


def reset(alive):
    """Forget lanes other than these, for all that was launched is over: for the time between tests."""
    with lock:
        lanes[:] = [lane for lane in lanes if lane.null or lane in alive]
        host.clear()
        for lane in lanes:
            lane.clock = {lane.number: lane.position}
            join(host, lane.clock)
        races.clear()
        freed_in_use.clear()


def fail(shadow, new, new_name, old, old_name):
    """Say which bytes, who, and who was not waited for."""
    kinds = {False: "reads", True: "writes"}
    start, stop = max(new.start, old.start) - shadow.base, min(new.stop, old.stop) - shadow.base
    message = (
        f"{new_name} {kinds[new.write]} bytes {start} to {stop} of {shadow.kind} memory of {shadow.nbytes} bytes"
        f" at {shadow.base:#x}, but nothing makes it wait for what {kinds[old.write]} them: {old_name}"
        f" (thread {threading.current_thread().name})"
    )
    races.append(message)
    raise RaceError(message)
