"""Run the MPI library's own blocking collectives as plans: the baseline for ours.

``wait`` or ``advance`` makes all progress.
"""

from functools import cache, partial
from typing import Any

import numpy as np

from dear_mpi.collectives.launch.cuda_aware import built_for
from dear_mpi.collectives.plans.call import Call, Task
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.plan import Act, InstructionRun
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES, Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module, synchronize
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.reference import OPS

INT_MAX = 2**31 - 1  # counts before MPI 4; later mpi4py uses the large-count calls
LOGICAL = {"sum": "LOR", "max": "LOR", "bor": "LOR", "prod": "LAND", "min": "LAND", "band": "LAND", "bxor": "LXOR"}
PARTS = (Part("device"), Part("whole"), Part("copying"))


def check(algorithm: str, collective: str, transport: Transport) -> None:
    if transport.native is None:
        raise ValueError(f"algorithm {algorithm!r} needs MPI, not the transport {transport.name!r}: use another one")


def check_call(call: Call, transport: Transport) -> None:
    reduces = COLLECTIVES[call.collective].reduces
    if call.x.dtype == DTYPES["bf16"] and reduces:
        raise ValueError(f"algorithm {call.algorithm!r} cannot reduce bf16, which MPI does not have: use 'ring'")
    for name, array in (("x", call.x), ("out", call.out)):
        if reduces and array is not None and not getattr(array.flags, "aligned", True):  # CuPy's lack the flag
            raise ValueError(f"{name} must be aligned for algorithm {call.algorithm!r}: pass a copy, or use 'ring'")
    units = call.count if reduces else call.count * call.x.dtype.itemsize
    if too_many(units):
        most = f"{INT_MAX} {'elements' if reduces else 'bytes'}, as MPI before version 4, not {units}"
        raise ValueError(f"algorithm {call.algorithm!r} takes at most {most}: use 'ring'")
    if reduces and call.x.dtype.kind in "iu" and call.op in OPS and not wraps(call.x.dtype, call.op):
        why = f"{transport.name.partition(';')[0]} saturates it, while NumPy and our algorithms wrap"
        raise ValueError(f"algorithm {call.algorithm!r} cannot take the {call.op} of {call.x.dtype}: {why}; use 'ring'")


@cache
def wraps(dtype: np.dtype[Any], op: str) -> bool:
    """Return whether the library's integers overflow as NumPy's.

    Open MPI's AVX code saturates 8- and 16-bit sums, but only in whole vectors.
    """
    from mpi4py import MPI

    limits = np.iinfo(dtype)
    x = np.resize(np.array([limits.max, limits.min], dtype), 1000)
    found = x.copy()
    getattr(MPI, op.upper()).Reduce_local(x, found)
    return bool((found == OPS[op](x, x)).all())


def too_many(units: int) -> bool:
    from mpi4py import MPI

    return units > INT_MAX and MPI.Get_version() < (4, 0)


class NativeRun(InstructionRun):
    def __init__(self, task: Task) -> None:
        call, transport, buffer = task.call, task.transport, task.buffer
        partition, comm = call.partition(transport.size), transport.native
        assert comm is not None, "check has seen it"
        if not built_for(buffer, comm, taken=transport.takes(buffer)):
            name = transport.name.partition(";")[0]
            raise ArgumentError(f"algorithm {call.algorithm!r} needs an MPI built for GPUs, which {name} is not")
        name, arguments = mpi_call(
            call.collective, buffer, None, partition, rank=transport.rank, op=task.op, root=call.root
        )
        calls = [partial(synchronize, buffer), partial(getattr(comm, name), *arguments)]  # MPI knows no streams
        if call.collective == "reduce_scatter":  # MPI puts the shard at the start
            shard = buffer[partition.shard(transport.rank)]
            calls.append(partial(move, shard, buffer[: shard.size]))
        super().__init__(transport.rank, list(map(Act, PARTS, calls)), ())

    def on(self, task: Task) -> "NativeRun":
        return NativeRun(task)

    def start(self) -> None:
        """Do nothing: the library's calls block."""
        self.position = 0


prepare = NativeRun


def mpi_call(
    collective: str,
    x: Array,
    out: Array | None,
    partition: Partition,
    *,
    rank: int,
    op: str,
    root: int = 0,
    by_counts: bool = False,
) -> tuple[str, tuple[Any, ...]]:
    """Return mpi4py's blocking call and its arguments; in place without ``out``.

    Unequal shards, or ``by_counts``: MPI_Reduce_scatter and MPI_Allgatherv.
    """
    from mpi4py import MPI

    combine = getattr(MPI, LOGICAL[op] if x.dtype == np.bool_ else op.upper())
    target, by_counts = x if out is None else out, by_counts or len(set(partition.counts)) > 1
    send = MPI.IN_PLACE if out is None else x
    # As bytes: MPI lacks some of our types.
    nbytes = [count * x.itemsize for count in partition.counts]
    gathered = [target.view("u1"), nbytes if by_counts else nbytes[rank], MPI.BYTE]
    given = MPI.IN_PLACE if out is None else [x.view("u1"), MPI.BYTE]
    scatter = ("Reduce_scatter", (send, target, partition.counts, combine))
    calls: dict[str, tuple[str, tuple[Any, ...]]] = {
        "all_reduce": ("Allreduce", (send, target, combine)),
        "all_gather": ("Allgatherv" if by_counts else "Allgather", (given, gathered)),
        "all_to_all": ("Alltoall", (given, [target.view("u1"), nbytes[rank], MPI.BYTE])),
        "reduce_scatter": scatter if by_counts else ("Reduce_scatter_block", (send, target, combine)),
        "broadcast": ("Bcast", ([target.view("u1"), MPI.BYTE], root)),
        # In place at the root; elsewhere MPI does not write the buffer.
        "reduce": ("Reduce", (*((send, target) if rank == root else (x, None)), combine, root)),
    }
    return calls[collective]


def move(dst: Array, src: Array) -> None:
    dst[...] = src.copy() if array_module(src).may_share_memory(dst, src) else src
