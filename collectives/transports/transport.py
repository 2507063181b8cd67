"""Define how bytes move between two ranks: the protocol of MPI, threads and emulated links."""

import sys
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.kernels.array import Array, library_of

if TYPE_CHECKING:
    from dear_mpi.collectives.transports.counters import CounterBarrier

__all__ = ["Transport"]

T = TypeVar("T")
DEVICE_MEMORY = dict.fromkeys(("auto", "direct", "staged"))  # see ``launch/cuda_aware.py``


class Request(Protocol):
    """A repeatable message, as ``mpi4py.MPI.Prequest``.

    Waiting for an inactive one returns at once.
    """

    def Start(self) -> Any:
        """Begin a transfer; the buffer is the transport's until it completes."""

    def Wait(self) -> Any:
        """Block without the interpreter's lock."""

    def Test(self) -> bool:
        """Return whether the transfer is complete, without blocking."""

    def Free(self) -> Any:
        """Release an inactive request."""


class Awaited(Protocol):
    """A wait that watchdogs can describe."""

    def progress(self) -> tuple[int, ...]:
        """Return numbers that grow; empty for the last collective begun."""

    def waits_for(self) -> str:
        """Describe the wait; "" while computing."""


class Waits:
    """A rank's current wait, for its watchdog. One thread writes, others read, without lock.

    ``number`` counts collectives; ``monitor`` tells other ranks.
    """

    def __init__(self, monitor: Any) -> None:
        self.now: Awaited | None = None
        self.number = 0
        self.monitor = monitor

    def meet(self, what: str, call: Callable[..., T], *arguments: Any) -> T:
        self.number += 1
        self.now = Meeting(what)
        try:
            return call(*arguments)
        finally:
            self.now = None


class Meeting:
    """The waiting thread's stack names the caller."""

    __slots__ = ("thread", "what")  # made in each barrier, where it counts

    def __init__(self, what: str) -> None:
        self.what, self.thread = what, get_ident()

    def progress(self) -> tuple[int, ...]:
        return ()

    def waits_for(self) -> str:
        here: FrameType | None = sys._current_frames().get(self.thread)
        while here is not None and {"transports", "plans", "threading.py"} & set(Path(here.f_code.co_filename).parts):
            here = here.f_back  # to the caller of a transport, or of a collective
        if here is None:
            return f"all ranks: {self.what}"
        file = Path(here.f_code.co_filename).name
        return f"all ranks: {self.what}, in {here.f_code.co_name} ({file}:{here.f_lineno})"


class OneThread:
    """Let one thread at a time use a transport: a second one's order would differ by rank."""

    def __init__(self) -> None:
        self.tokens = [None]  # atomic calls: a fifth of a lock's time
        self.context = copy_context()
        # If NumPy raised on a rank with an overflow, the others would hang. (np.errstate takes ten times as long.)
        self.context.run(np.seterr, all="ignore")

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call without floating-point errors; CollectiveError: another thread is inside."""
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
    """A group of ranks, seen from one of them; one thread calls at a time.

    Messages of one tag between two ranks arrive in start order.
    """

    rank: int
    size: int
    spins: bool  # waiting keeps a core busy
    hosts: tuple[int, ...]
    rates: Rates | None  # of a rank, inside and between hosts; None if unknown
    kept: WeakSet[Any]  # freed before the group
    under_way: set[object]  # plans with incomplete messages
    one_thread: OneThread
    waits: Waits

    @property
    def name(self) -> str:
        """Name for reports; marks emulation."""

    @property
    def native(self) -> Any | None:
        """The MPI communicator, or None. Plans also send on it: take tags from ``next_tag``."""

    def allocate(self, nbytes: int) -> Array:
        """Return zeroed bytes, within reach of the host's other ranks if possible."""

    def reach(self, array: Array) -> Sequence[Array] | None:
        """Collective: return every rank's array; None on all ranks if one is out of reach."""

    def counters(self) -> "CounterBarrier | None":
        """Collective: return a new barrier of counters; None: plans should wait by messages."""

    def takes(self, array: Array) -> bool:
        """Return whether messages may use such memory; equal on all ranks.

        The first question about a device's memory is collective.
        """

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to send a contiguous array, fixed until ``Free``."""

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        pass

    def next_tag(self) -> int:
        """Return a tag that thousands of plans lack. All ranks ask in one order."""

    def gather_values(self, value: Any) -> list[Any]:
        """Collective, slow: return all ranks' picklable values."""

    def same(self, number: int) -> bool:
        """Collective, fast: return whether all ranks gave one number below 2^63."""

    def latest(self, moment_s: float) -> float:
        """Collective, fast: return the largest value."""

    def barrier(self, *, asleep: bool = False) -> None:
        """Collective. ``asleep``: some rank works long, so others wait without using cores or stalls."""

    def send_note(self, note: Any, tag: int) -> bool:
        """Send a picklable note to all other ranks without waiting; False if unsupported."""

    def received_notes(self, tag: int) -> list[Any]:
        """Return the notes with this tag; any thread may call."""

    def free(self) -> None:
        """Collective."""

    def abort(self, message: str) -> None:
        """End all ranks."""


class Wrapper(Generic[T]):
    def __init__(self, below: T) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class StagedTransport(Wrapper[Transport]):
    """A transport that plans never give device memory."""

    def takes(self, array: Array) -> bool:
        return library_of(array) == "numpy"
