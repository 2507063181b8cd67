"""How bytes move between two ranks: the small protocol behind which MPI, threads and emulated links hide."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.kernels.array import Array, library_of

__all__ = ["OneThread", "Request", "StagedTransport", "Transport", "Wrapper"]

T = TypeVar("T")


class Request(Protocol):
    """A message that can be sent or received again and again, from or to the same memory, as ``mpi4py.MPI.Prequest``.

    Waiting for a request that was not started returns at once.
    """

    def Start(self) -> Any:
        """Begin one transfer. The buffer belongs to the transport until it is over."""

    def Wait(self) -> Any:
        """Block until the transfer is over; the interpreter lock is released meanwhile."""

    def Test(self) -> bool:
        """Whether the transfer is over; never blocks, and gives the transport a chance to move bytes."""

    def Free(self) -> Any:
        """Give the resources back; the request must not be under way."""


class Awaited(Protocol):
    def progress(self) -> tuple[int, ...]:
        """The number of its collective, and how far that has come; empty if it is the last one that was begun."""

    def waits_for(self) -> str:
        """What it waits for, for a reader; "" while it does something itself."""


class Waits:
    """The present wait of a rank, for its watchdog. Its thread writes, others only read, so there is no lock.

    ``number`` counts the collectives that were begun, which all ranks begin in the same order. ``notice`` is where the
    other ranks are told of it (``launch/neighbours.py``). ``alarms`` are called when a wait takes too long.
    """

    def __init__(self, notice: Any) -> None:
        self.now: Awaited | None = None
        self.number = 0
        self.notice = notice
        self.alarms: list[Callable[[], object]] = []

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        self.number += 1
        self.now = Meeting(what)
        try:
            yield
        finally:
            self.now = None


class Meeting:
    """All ranks come together for ``what``. The stack of the thread that waits names the caller."""

    __slots__ = ("thread", "what")  # made in each barrier, where it counts

    def __init__(self, what: str) -> None:
        self.what, self.thread = what, get_ident()

    def progress(self) -> tuple[int, ...]:
        return ()

    def waits_for(self) -> str:
        here: FrameType | None = sys._current_frames().get(self.thread)
        while here is not None and {"transports", "threading.py"} & set(Path(here.f_code.co_filename).parts):
            here = here.f_back  # as far as the code that called the transport
        if here is None:
            return f"all ranks: {self.what}"
        file = Path(here.f_code.co_filename).name
        return f"all ranks: {self.what}, in {here.f_code.co_name} ({file}:{here.f_lineno})"


class OneThread:
    """Lets one thread at a time use a transport, and refuses a second one: if it waited, threads would go on in another
    order on each rank."""

    def __init__(self) -> None:
        self.tokens = [None]  # taken and put back by one atomic call each, which takes a fifth of a lock's time
        self.context = copy_context()
        # If NumPy raised on the rank whose sum overflows, the others would wait. (np.errstate takes ten times as long.)
        self.context.run(np.seterr, all="ignore")

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call, in which infinities and NaNs are results like others; CollectiveError if a thread is inside."""
        try:
            self.tokens.pop()
        except IndexError:
            message = "two threads use one communicator at once: give each its own, by comm.Dup()"
            raise CollectiveError(message) from None
        try:
            return self.context.run(call, *arguments)
        finally:
            self.tokens.append(None)


class Transport(Protocol):
    """A group of ranks, seen from one of them; calls come from one thread at a time.

    Between two ranks, messages of one tag arrive in the order in which they were started.
    """

    rank: int
    size: int
    spins: bool  # whether a rank that waits for a message keeps a core busy
    hosts: tuple[int, ...]  # the number of the host of each rank, the same on all ranks
    rates: Rates | None  # of a rank, inside its host and between hosts; None where nobody has said it
    kept: WeakSet[Any]  # what is to be freed before the ranks part
    under_way: set[object]  # plans whose messages may not be over: dropped by a user, they stay here for good
    one_thread: OneThread
    waits: Waits  # what this rank waits for at present

    @property
    def name(self) -> str:
        """What carries the bytes, for reports: it says so where something is emulated."""

    @property
    def native(self) -> Any | None:
        """The MPI communicator on which the library's own collectives work; None where there is none.

        Plans send messages on it, too: whatever else sends on it takes a tag from ``next_tag``.
        """

    def allocate(self, nbytes: int) -> Array:
        """Zero bytes that the other ranks of the host can reach, where that is possible at all."""

    def reach(self, array: Array) -> Sequence[Array] | None:
        """Collective: the same array of every rank, to be read and written; None (on all ranks) if one is out of reach:
        it must be in memory that ``allocate`` gave, and all ranks on one host."""

    def takes(self, array: Array) -> bool:
        """Whether memory like this array's can be sent from and received into, as a host's always can be; the same on
        all ranks. Collective when it is first asked about a device's memory."""

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to send a contiguous array, whose memory must stay where it is until ``Free``."""

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to receive into a contiguous array."""

    def next_tag(self) -> int:
        """A tag that none of the last thousands of plans has. All ranks must ask in the same order."""

    def gather_values(self, value: Any) -> list[Any]:
        """Collective: the (picklable) values of all ranks, in rank order. For set-up and reports, not for speed."""

    def same(self, number: int) -> bool:
        """Collective, and quick: whether all ranks have given the same number, below 2^63."""

    def latest(self, moment_s: float) -> float:
        """Collective, and quick: the largest number that a rank has given."""

    def barrier(self, *, asleep: bool = False) -> None:
        """Collective: return when all ranks have come. If ``asleep``, one of them does something long: the others wait
        without using their cores, and that is no stall."""

    def send_note(self, note: Any, tag: int) -> bool:
        """Send all other ranks a small (picklable) note, without waiting; whether this transport can do that."""

    def received_notes(self, tag: int) -> list[Any]:
        """The notes of other ranks that have come so far with a tag of ``next_tag``; any thread may ask."""

    def part(self, ranks: int) -> "Transport | None":
        """Collective: the first so many ranks as a group of their own, on these, which ``free`` it; None on the
        others. What one of them waits for is seen as a wait of this transport."""

    def free(self) -> None:
        """Collective: give back what the group has."""

    def abort(self, message: str) -> None:
        """End all ranks, because this one cannot go on."""


class Wrapper(Generic[T]):
    """A transport or a request that is like the one below it in all that it does not define."""

    def __init__(self, below: T) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class StagedTransport(Wrapper[Transport]):
    """A transport that is never given device memory: plans stage it."""

    def part(self, ranks: int) -> "StagedTransport | None":
        below = self.below.part(ranks)
        return None if below is None else StagedTransport(below)

    def takes(self, array: Array) -> bool:
        return library_of(array) == "numpy"
