"""The transport over MPI: persistent point-to-point requests on a communicator of its own.

Bytes are sent, never typed elements: MPI has no bf16, and the reduction is ours. Buffers are handed to MPI as
they are; nothing is copied here.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from mpi4py import MPI

from dear_mpi.collectives.launch.cuda_aware import Verdict, decide
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.launch.mpi_facts import queries
from dear_mpi.collectives.transports.shared_memory import SharedMemory
from dear_mpi.collectives.transports.transport import Request
from dear_mpi.kernels.array import Array, library_of

__all__ = ["MpiTransport", "world_communicator"]


class MpiTransport:
    """The ranks of an MPI communicator, on a duplicate of it, so that no message meets one of the user's.

    Constructing is collective, over all ranks of ``comm``.

    Attributes:
        device_memory: how a GPU's memory gets to MPI: ``direct``, ``staged`` through pinned host memory, or ``auto``,
            which is found out when the first such buffer is seen (``launch/cuda_aware.py``); then ``name`` says it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.device_memory = "auto"
        self.verdict: Verdict | None = None
        self.memory = SharedMemory()
        self.comm = comm.Dup()
        names = self.comm.allgather(MPI.Get_processor_name())
        self.hosts = tuple(map(names.index, names))
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.native = True
        self.name = "{} {}.{}.{}".format(MPI.get_vendor()[0], *MPI.get_vendor()[1])
        upper: int | None = self.comm.Get_attr(MPI.TAG_UB)
        self.tags = itertools.cycle(range(1, upper or 32767))

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> MpiTransport:
        """The one transport of a communicator, made at first use and kept as one of its MPI attributes."""
        found = comm.Get_attr(keyval())
        if isinstance(found, cls):
            return found
        transport = cls(comm)
        comm.Set_attr(keyval(), transport)
        return transport

    def shareable(self, nbytes: int) -> Array:
        return self.memory.allocate(nbytes)

    def reach(self, array: Array) -> Sequence[Array] | None:
        regions = self.comm.allgather(self.memory.find(array))
        if None in regions or len(set(self.hosts)) > 1:
            return None
        try:
            views = [
                array if rank == self.rank else self.memory.view(region, array) for rank, region in enumerate(regions)
            ]
        except OSError:
            views = None
        return views if all(self.comm.allgather(views is not None)) else None

    def takes(self, array: Array) -> bool:
        if library_of(array) == "numpy":
            return True
        if self.verdict is None:
            self.verdict = decide(self.comm, self.device_memory)
            self.name = f"{self.name}; {self.verdict.why}"
        return self.verdict.direct

    def was_built_for(self, array: Array) -> bool:
        """Whether the library's own collectives may have this memory: if it takes it, and says so itself.

        Messages alone need only a UCX that knows CUDA; reductions by an MPI that was built without it would crash.
        """
        return library_of(array) == "numpy" or (self.takes(array) and True in queries(self.comm).values())

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return self.comm.Send_init([data.view("u1"), MPI.BYTE], peer, tag)

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return self.comm.Recv_init([data.view("u1"), MPI.BYTE], peer, tag)

    def next_tag(self) -> int:
        return next(self.tags)

    def gather_values(self, value: Any) -> list[Any]:
        return self.comm.allgather(value)

    def abort(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        self.comm.Abort(1)


@cache
def keyval() -> int:
    """The key under which a communicator keeps its transport; freeing the communicator frees the duplicate."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, transport: transport.comm.Free())


def world_communicator() -> MPI.Intracomm:
    """All processes of the job.

    Raises:
        RuntimeError: MPI was started for one thread only, while our engine calls it from a second one; or the
            launcher is another MPI's, so that each process believes to be alone.
    """
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RuntimeError("MPI's thread level must be at least MPI_THREAD_SERIALIZED, for the engine's thread")
    launched = launch_of(os.environ).size
    if MPI.COMM_WORLD.Get_size() == 1 < launched:
        vendor = MPI.get_vendor()[0]
        raise RuntimeError(f"{launched} ranks were launched, but {vendor} sees one: mpirun belongs to another MPI")
    return MPI.COMM_WORLD
