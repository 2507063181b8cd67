"""The MPI library's own collectives behind the interface of a plan: the baseline that ours are held against.

They are the blocking ones, which are the fastest that MPI libraries have. So a run makes no progress until ``wait``
or ``advance``, and either does all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dear_mpi.collectives.launch.cuda_aware import built_for
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import BoundInstruction, InstructionRun
from dear_mpi.collectives.plans.runners.runner import Task
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.events import synchronize

__all__ = ["NativeRun", "check", "check_call", "prepare"]


def check(algorithm: str, collective: str, transport: Transport) -> None:
    if transport.native is None:
        raise ValueError(f"algorithm {algorithm!r} needs MPI, not the transport {transport.name!r}: take one of ours")


def check_call(call: Call, transport: Transport) -> None:
    if call.x.dtype == DTYPES["bf16"] and COLLECTIVES[call.collective].reduces:
        raise ValueError(f"algorithm {call.algorithm!r} cannot reduce bf16, which MPI does not have: use 'ring'")


def prepare(task: Task) -> InstructionRun:
    return NativeRun(task)


class NativeRun(InstructionRun):
    """The library's collective on a flat buffer, in place.

    ``call`` is the library's; ``home`` then brings a shard from the start of the buffer to where it belongs.
    MPI_Reduce_scatter_block and MPI_Allgather where all shards are equal, else MPI_Reduce_scatter and MPI_Allgatherv.

    Raises:
        ArgumentError: the buffer is on a device, for which the library was not built (on all ranks alike).
    """

    def __init__(self, task: Task) -> None:
        from mpi4py import MPI  # it is started: the transport has a communicator

        self.task = task
        transport, buffer, root = task.transport, task.buffer, task.call.root
        partition = task.call.partition(transport.size)
        comm: Any = transport.native
        if not built_for(buffer, comm, taken=transport.memory.takes(buffer)):
            name = transport.name.partition(";")[0]
            raise ArgumentError(f"algorithm {task.call.algorithm!r} needs an MPI built for GPUs, which {name} is not")
        combine = getattr(MPI, task.op.upper())
        shard, equal = buffer[partition.shard(transport.rank)], len(set(partition.counts)) == 1
        octets = buffer.view("u1")  # MPI does not have all of our types
        nbytes = [count * buffer.dtype.itemsize for count in partition.counts]
        # At the root in place; elsewhere MPI leaves the buffer alone.
        ends = (MPI.IN_PLACE, buffer) if transport.rank == root else (buffer, None)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(comm.Allreduce, MPI.IN_PLACE, buffer, combine),
            "all_gather": partial(comm.Allgatherv, MPI.IN_PLACE, [octets, nbytes, MPI.BYTE]),
            "reduce_scatter": partial(comm.Reduce_scatter, MPI.IN_PLACE, buffer, partition.counts, combine),
            "broadcast": partial(comm.Bcast, [octets, MPI.BYTE], root),
            "reduce": partial(comm.Reduce, *ends, combine, root),
        }
        if equal:
            calls["all_gather"] = partial(comm.Allgather, MPI.IN_PLACE, [octets, shard.nbytes, MPI.BYTE])
            calls["reduce_scatter"] = partial(comm.Reduce_scatter_block, MPI.IN_PLACE, buffer, combine)
        self.call = calls[task.call.collective]
        # MPI leaves the shard at the start of the buffer, wherever it belongs.
        scattered = task.call.collective == "reduce_scatter"
        self.home = partial(move, shard, buffer[: shard.size]) if scattered else lambda: None
        wait = partial(synchronize, buffer)  # MPI knows no streams
        super().__init__(transport.rank, [BoundInstruction((), (), (), (wait, self.call, self.home))], ())

    def on(self, buffer: Array) -> NativeRun:
        return NativeRun(self.task.on(buffer))

    def start(self) -> None:
        """Nothing yet: the library's calls block."""
        self.position = 0


def move(dst: Array, src: Array) -> None:
    """Copy within a buffer, where the two may overlap."""
    dst[...] = src.copy() if array_module(src).may_share_memory(dst, src) else src
