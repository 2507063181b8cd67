"""The MPI library's own collectives behind the interface of a plan: the baseline that ours are held against.

They are the blocking ones, which are the best that MPI libraries have; so a run makes no progress until it is
waited for, and ``advance`` does all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from mpi4py import MPI

from dear_mpi.collectives.errors import ArgumentError
from dear_mpi.collectives.mpi_transport import MpiTransport
from dear_mpi.collectives.partition import chunk_offsets
from dear_mpi.collectives.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.choose import choose
from dear_mpi.kernels.events import settle

__all__ = ["NativeRun"]

OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


class NativeRun:
    """MPI_Reduce_scatter, MPI_Allgatherv or MPI_Allreduce on a flat buffer, in place (``Call`` checks that it can).

    Raises:
        ArgumentError: the buffer is on a device, for which the library was not built (on all ranks alike).
    """

    def __init__(self, collective: str, buffer: Array, transport: Transport, *, op: str) -> None:
        assert isinstance(transport, MpiTransport), "check_algorithm lets no other transport pass"
        if not transport.was_built_for(buffer):
            name = transport.name.partition(";")[0]
            raise ArgumentError(f"algorithm 'native' needs an MPI that was built for GPUs, which {name} was not")
        self.buffer = buffer
        offsets = chunk_offsets(buffer.size, transport.size)
        counts = [stop - start for start, stop in pairwise(offsets)]
        shard = buffer[offsets[transport.rank] : offsets[transport.rank + 1]]
        comm, combine = transport.comm, choose("op", op, OPS)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(comm.Allreduce, MPI.IN_PLACE, buffer, combine),
            "all_gather": partial(comm.Allgatherv, MPI.IN_PLACE, in_bytes(buffer, counts, offsets)),
            "reduce_scatter": partial(reduce_scatter, comm, buffer, shard, counts, combine),
        }
        self.call = choose("collective", collective, calls)
        self.pending = False

    def start(self) -> None:
        self.pending = True

    def advance(self) -> bool:
        self.wait()
        return True

    def wait(self) -> None:
        if self.pending:
            settle(self.buffer)  # MPI knows no streams
            self.call()
        self.pending = False

    def free(self) -> None:
        pass


def in_bytes(buffer: Array, counts: list[int], offsets: tuple[int, ...]) -> list[Any]:
    """MPI's description of a buffer cut into chunks; as bytes, because MPI does not have all of our types."""
    itemsize = buffer.dtype.itemsize
    places = [offset * itemsize for offset in offsets[:-1]]
    return [buffer.view("u1"), [count * itemsize for count in counts], places, MPI.BYTE]


def reduce_scatter(comm: MPI.Intracomm, buffer: Array, shard: Array, counts: list[int], op: MPI.Op) -> None:
    """Reduce in place, then move the shard home: MPI leaves it at the start of the buffer."""
    comm.Reduce_scatter(MPI.IN_PLACE, buffer, counts, op)
    if shard.size:
        shard[...] = buffer[: shard.size].copy()
