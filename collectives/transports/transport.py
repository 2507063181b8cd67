"""How bytes move between two ranks: the small protocol behind which MPI, threads and emulated links hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dear_mpi.kernels.array import Array

__all__ = ["Request", "StagedTransport", "Transport"]


class Request(Protocol):
    """A message that can be sent or received again and again, from or to the same place.

    The methods are those of ``mpi4py.MPI.Prequest``, so that MPI's own requests need no wrapper in the inner loop.
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


class Transport(Protocol):
    """A group of ranks, seen from one of them.

    Between two ranks, messages of one tag arrive in the order in which they were started. Calls come from one
    thread at a time.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def name(self) -> str:
        """What carries the bytes, for reports: it says so where something is emulated."""

    @property
    def native(self) -> bool:
        """Whether the MPI library's own collectives work on it."""

    @property
    def hosts(self) -> Sequence[int]:
        """The number of the host of each rank, the same on all ranks."""

    def shareable(self, nbytes: int) -> Array:
        """Zero bytes that the other ranks of the host can reach, where that is possible at all."""

    def reach(self, array: Array) -> Sequence[Array] | None:
        """Collective: the same array of every rank, to be read and written; None (on all ranks) if one is out of reach.

        It is reached if all ranks are on one host and each has its array in memory that ``shareable`` gave.
        """

    def takes(self, array: Array) -> bool:
        """Whether messages can be sent from and received into memory like this array's; host memory always can be.

        Collective when it is first asked about a device's memory, and the same on all ranks.
        """

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to send a contiguous array, whose memory must stay where it is until ``Free``."""

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        """Prepare to receive into a contiguous array."""

    def next_tag(self) -> int:
        """Another tag than that of the last thousands of plans; all ranks ask in the same order."""

    def gather_values(self, value: Any) -> list[Any]:
        """Collective: the (picklable) values of all ranks, in rank order. For set-up and reports, not for speed."""

    def abort(self, message: str) -> None:
        """End all ranks, because this one cannot go on."""


class StagedTransport:
    """The same ranks over the same transport, which is not handed device memory: plans stage it."""

    def __init__(self, below: Transport) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def takes(self, array: Array) -> bool:
        return False
