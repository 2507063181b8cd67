"""Outlive ranks under MPI by ULFM: Open MPI started as ``mpirun --with-ft ulfm``. Traps (docs/decisions/0033):

1. ``Waitall`` without statuses loses errors over TCP, and so may MPI's collectives: wait one by one, with a status.
2. ``MPI_Finalize`` hangs after a death: ``mpi4py.rc.finalize = False`` before MPI is imported.
3. Only ``Agree`` has one result on all ranks, see ``elastic.py``.
4. A persistent request cannot start again after an error: plans are made anew, and old memory is kept.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from dear_mpi.collectives.launch.launcher import OPEN_MPI
from dear_mpi.collectives.program.errors import RanksLost
from dear_mpi.collectives.transports.elastic import Elastic
from dear_mpi.collectives.transports.mpi import UNDER_WAY, MpiTransport
from dear_mpi.collectives.transports.transport import Request
from dear_mpi.kernels.array import Array

T = TypeVar("T")
GATHER_TAG = 0  # of no plan
STARTED = "OMPI_MCA_mpi_ft_enable"  # 1 under --with-ft ulfm


def check_ulfm() -> None:
    """Raise ValueError, equally on all ranks, unless MPI outlives ranks."""
    vendor = MPI.get_vendor()[0]
    if vendor != "Open MPI" or os.environ.get(STARTED) != "1":
        advice = f"start {OPEN_MPI[:8]} 5 or later as mpirun --with-ft ulfm, or use --threads"
        raise ValueError(f"elastic needs an MPI that outlives ranks (ULFM), and {vendor} was started without: {advice}")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:  # an engine may wait while another thread revokes
        raise ValueError("elastic needs MPI_THREAD_MULTIPLE")


def elastic_world(comm: MPI.Intracomm) -> Elastic:
    """Return a transport of a communicator that outlives ranks. Collective. Raises ValueError on all ranks."""
    check_ulfm()
    return Elastic(UlfmTransport(comm))


class UlfmRequest:
    """A request, waited for with a status; its transport revokes itself at once after an error."""

    def __init__(self, transport: UlfmTransport, request: MPI.Request) -> None:
        self.transport, self.request, self.status = transport, request, MPI.Status()

    def Start(self) -> None:
        self.transport.guarded(self.request.Start)  # type: ignore[attr-defined]

    def Wait(self) -> None:
        self.transport.guarded(self.request.Wait, self.status)

    def Test(self) -> bool:
        return self.transport.guarded(self.request.Test, self.status)

    def Free(self) -> None:
        self.transport.guarded(self.request.Free)


class UlfmTransport(MpiTransport):
    """The ranks of a communicator, some of which may die. Constructing is collective."""

    def join(self, native: MPI.Intracomm, hosts: tuple[int, ...]) -> None:
        native.Set_errhandler(MPI.ERRORS_RETURN)
        super().join(native, hosts)
        if "members" not in vars(self):
            self.members = tuple(range(self.size))

    def guarded(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except MPI.Exception as error:
            self.revoke()
            raise RanksLost(f"MPI lost a rank: {error}") from error

    def reach(self, array: Array) -> None:
        """Return None: a peer that spins on memory would not notice a death."""

    def counters(self) -> None:
        """Return None, as ``reach``."""

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return UlfmRequest(self, self.guarded(self.native.Send_init, [data.view("u1"), MPI.BYTE], peer, tag))

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return UlfmRequest(self, self.guarded(self.native.Recv_init, [data.view("u1"), MPI.BYTE], peer, tag))

    def gather_values(self, value: Any) -> list[Any]:
        return self.waits.meet("values of all ranks", self.exchanged, value)

    def exchanged(self, value: Any) -> list[Any]:
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = self.swapped(np.array([mine.size]), [np.empty(1, np.int64) for _ in range(self.size)])
        found = self.swapped(mine, [np.empty(int(size[0]), np.uint8) for size in sizes])
        return [value if rank == self.rank else pickle.loads(each.tobytes()) for rank, each in enumerate(found)]

    def swapped(self, mine: Array, rooms: list[Array]) -> list[Array]:
        """Send an array to all ranks and receive theirs."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [
            UlfmRequest(self, self.guarded(self.native.Irecv, rooms[each], each, GATHER_TAG)) for each in others
        ]
        requests += [UlfmRequest(self, self.guarded(self.native.Isend, mine, each, GATHER_TAG)) for each in others]
        UNDER_WAY.update(requests)
        for request in requests:
            request.Wait()
        UNDER_WAY.difference_update(requests)  # after an error requests may still use the arrays
        rooms[self.rank] = mine
        return rooms

    def same(self, number: int) -> bool:
        return len(set(self.gather_values(number))) == 1

    def latest(self, moment_s: float) -> float:
        return max(self.gather_values(moment_s))

    def barrier(self, *, asleep: bool = False) -> None:
        self.gather_values(None)

    def free(self) -> None:
        """Do nothing: freeing is collective, and ranks may be dead."""

    def revoke(self) -> None:
        if not self.native.Is_revoked():
            self.native.Revoke()

    def agree(self, mask: int) -> int:
        try:
            return self.native.Agree(mask)
        except MPI.Exception as error:
            raise RanksLost(f"MPI lost a rank: {error}") from error

    def shrink(self) -> UlfmTransport:
        native = MPI.Intracomm(self.native.Shrink())
        alive = native.group.Translate_ranks(None, self.native.group)
        made = copy(self)
        made.members = tuple(self.members[rank] for rank in alive)
        made.join(native, tuple(self.hosts[rank] for rank in alive))
        return made

    def die(self, message: str) -> None:
        """End by a signal: if a process exits, Open MPI 5.0.11 ends the job, or reports nothing."""
        print(message, file=sys.stderr, flush=True)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
