"""Define how bytes move between two ranks: the protocol of MPI, threads and emulated links."""

import sys
from collections.abc import Callable, Sequence
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

__all__ = ["Transport"]

T = TypeVar("T")
DEVICE_MEMORY = dict.fromkeys(("auto", "direct", "staged"))  # how MPI gets it (``launch/cuda_aware.py``)


class Request(Protocol):
    """A message that can be repeated from the same memory, as ``mpi4py.MPI.Prequest``.

    Waiting for an inactive request returns at once.
    """

    def Start(self) -> Any:
        """Begin a transfer; the transport owns the buffer until it completes."""

    def Wait(self) -> Any:
        """Block until the transfer completes, with the interpreter lock released."""

    def Test(self) -> bool:
        """Return whether the transfer is complete; may move bytes, never blocks."""

    def Free(self) -> Any:
        """Release an inactive request."""


class Awaited(Protocol):
    """A wait that the watchdog can describe."""

    def progress(self) -> tuple[int, ...]:
        """Return the collective's number and progress; empty for the last one begun."""

    def waits_for(self) -> str:
        """Describe the wait; "" while computing."""


class Waits:
    """A rank's current wait, for its watchdog. One thread writes, others read, so there is no lock.

    ``number`` counts collectives; ``monitor`` tells other ranks.
    """

    def __init__(self, monitor: Any) -> None:
        self.now: Awaited | None = None
        self.number = 0
        self.monitor = monitor

    def meet(self, what: str, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call that waits for all ranks."""
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
        while here is not None and {"transports", "threading.py"} & set(Path(here.f_code.co_filename).parts):
            here = here.f_back  # up to the caller of the transport
        if here is None:
            return f"all ranks: {self.what}"
        file = Path(here.f_code.co_filename).name
        return f"all ranks: {self.what}, in {here.f_code.co_name} ({file}:{here.f_lineno})"


class OneThread:
    """Let one thread at a time use a transport: a second that waited would continue in another order on each rank."""

    def __init__(self) -> None:
        self.tokens = [None]  # one atomic call each to take and return: a fifth of a lock's time
        self.context = copy_context()
        # If NumPy raised on the rank with an overflow, the others would hang. (np.errstate takes ten times as long.)
        self.context.run(np.seterr, all="ignore")

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call without floating-point errors; CollectiveError if another thread is inside."""
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
    spins: bool  # whether waiting keeps a core busy
    hosts: tuple[int, ...]
    rates: Rates | None  # of a rank, inside and between hosts; None if unknown
    kept: WeakSet[Any]  # to be freed before the group
    under_way: set[object]  # plans with possibly incomplete messages, kept alive
    one_thread: OneThread
    waits: Waits

    @property
    def name(self) -> str:
        """Name for reports; marks emulation."""

    @property
    def native(self) -> Any | None:
        """The MPI communicator for the library's own collectives, or None.

        Plans also send on it, so other senders take a tag from ``next_tag``.
        """

    def allocate(self, nbytes: int) -> Array:
        """Return zeroed bytes, reachable for the host's other ranks if possible."""

    def reach(self, array: Array) -> Sequence[Array] | None:
        """Collective: return this array of every rank, for reading and writing.

        None on all ranks if one is not from ``allocate`` or ranks are on several hosts.
        """

    def takes(self, array: Array) -> bool:
        """Return whether messages may use such memory; equal on all ranks.

        Host memory always can. The first question about a device's memory is collective.
        """

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to send a contiguous array, which must not move until ``Free``."""

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to receive into a contiguous array."""

    def next_tag(self) -> int:
        """Return a tag not used by the last thousands of plans. All ranks ask in one order."""

    def gather_values(self, value: Any) -> list[Any]:
        """Collective: return all ranks' (picklable) values. For set-up and reports: slow."""

    def same(self, number: int) -> bool:
        """Collective, fast: return whether all ranks gave the same number below 2^63."""

    def latest(self, moment_s: float) -> float:
        """Collective, fast: return the largest value."""

    def barrier(self, *, asleep: bool = False) -> None:
        """Collective: return when all ranks have called.

        ``asleep``: some rank does long work; the others wait without using cores, and no stall is reported.
        """

    def send_note(self, note: Any, tag: int) -> bool:
        """Send a small (picklable) note to all other ranks without waiting; False if unsupported."""

    def received_notes(self, tag: int) -> list[Any]:
        """Return the notes received with this tag; any thread may call."""

    def free(self) -> None:
        """Collective: release the group."""

    def abort(self, message: str) -> None:
        """End all ranks because this one cannot continue."""


class Wrapper(Generic[T]):
    """Delegates undefined attributes."""

    def __init__(self, below: T) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class StagedTransport(Wrapper[Transport]):
    """A transport that plans never give device memory."""

    def takes(self, array: Array) -> bool:
        return library_of(array) == "numpy"
