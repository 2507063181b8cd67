"""From what a user asks for to a plan.

Call        (arguments.py)  checks the arguments on this rank
agree       (agree.py)      compares them with those of the other ranks
Place       (here)          says which buffer is worked on in place, and what is copied around that
Execution   (execute.py)    compiles the algorithm's program for that buffer; or NativeRun (native.py)
Plan        (plan.py)       is all of it together, to be run many times
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.agree import agree
from dear_mpi.collectives.algorithms import NATIVE, find_algorithm
from dear_mpi.collectives.arguments import SEGMENT_BYTES, Call
from dear_mpi.collectives.execute import Execution
from dear_mpi.collectives.partition import chunk_bounds
from dear_mpi.collectives.plan import Plan, Runnable
from dear_mpi.collectives.transport import Transport
from dear_mpi.kernels.accumulate import copier
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.slab import Slab

__all__ = ["make_plan", "transport_of"]


def make_plan(
    collective: str,
    x: Array,
    comm: Any,
    *,
    out: Array | None = None,
    algorithm: str = "ring",
    op: str = "sum",
    segment_bytes: int = SEGMENT_BYTES,
    slab: Slab | None = None,
) -> Plan:
    """Prepare a collective for these arrays; the plan is run by calling it, or by start / advance / wait.

    Collective: all ranks call it, in the same order, with the same count, dtype, op, algorithm and segment size.

    Args:
        collective: ``reduce_scatter``, ``all_gather`` or ``all_reduce``.
        x, out: as in the table at the head of ``dear_mpi.collectives``; contiguous, of any shape.
        comm: an mpi4py communicator, or a ``Transport``.
        algorithm: a name in ``ALGORITHMS``, or ``native`` for the MPI library's own collective.
        op: ``sum``, ``prod``, ``min``, ``max``, or ``average`` (a sum that is scaled once, in fp32, at the end).
        segment_bytes: the largest message.
        slab: where the plan's own memory is taken from; it makes its own if there is none.

    Arrays of CuPy are worked on where they are, on the current stream of the thread that runs the plan: the result
    is in order on that stream. They are handed to MPI if it takes them (``Transport.takes``), else staged.

    Raises:
        ArgumentError: an argument is not allowed, on this rank or on another one; all ranks raise the same.
        MismatchError: the ranks do not agree.
    """
    transport = transport_of(comm)
    tag = transport.next_tag()
    call = Call(collective, x, out, algorithm, op, segment_bytes)
    agree(transport, collective, lambda: {**call.check(transport), "number of the plan": tag})
    place = placed(call, transport.rank, transport.size)
    run = compiled(call, place.buffer, transport, tag, slab)
    return Plan(run, place.result, before=place.before, after=place.after)


def transport_of(comm: Any) -> Transport:
    """``comm`` itself if it is a transport; else the transport of an mpi4py communicator.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(comm, "send_init"):
        transport: Transport = comm
        return transport
    if not hasattr(comm, "Is_inter"):
        raise TypeError(f"comm must be an mpi4py communicator or a Transport, not {type(comm).__name__}")
    if not comm or comm.Is_inter():
        raise TypeError("comm must be an intracommunicator that has not been freed")
    from dear_mpi.collectives.mpi_transport import MpiTransport  # imports, and so starts, MPI

    return MpiTransport.of(comm)


def compiled(call: Call, buffer: Array, transport: Transport, tag: int, slab: Slab | None) -> Runnable:
    """What moves the data: one of our programs, or the MPI library's collective."""
    op = "sum" if call.op == "average" else call.op
    if call.algorithm == NATIVE:
        from dear_mpi.collectives.native import NativeRun  # imports, and so starts, MPI

        return NativeRun(call.collective, buffer, transport, op=op)
    program = find_algorithm(call.algorithm, call.collective)(transport.rank, transport.size)
    segment = call.segment_bytes // call.x.dtype.itemsize
    return Execution(
        program, buffer, transport, op=op, segment=segment, tag=tag, staged=not transport.takes(buffer), slab=slab
    )


@dataclass(frozen=True)
class Place:
    """The flat buffer that a run works on in place, what it returns, and what is copied or scaled around it."""

    buffer: Array
    result: Array
    before: list[Callable[[], object]]
    after: list[Callable[[], object]]


def placed(call: Call, rank: int, size: int) -> Place:
    """Where a call works: in ``x``, in ``out``, or (reduce_scatter with ``out``) in a buffer of its own."""
    start, stop = chunk_bounds(call.count, size, rank)
    scale = 1 / size if call.op == "average" else 1.0
    x = call.x.reshape(-1)
    if call.out is None:
        scaled = x[start:stop] if call.collective == "reduce_scatter" else x
        result = scaled if call.collective == "reduce_scatter" else call.x
        return Place(x, result, [], [copier(scaled, scaled, scale)] if scale != 1 else [])
    out = call.out.reshape(-1)
    if call.collective == "reduce_scatter":
        buffer = array_module(x).empty_like(x)
        return Place(buffer, call.out, [copier(buffer, x)], [copier(out, buffer[start:stop], scale)])
    arriving = out[start:stop] if call.collective == "all_gather" else out
    return Place(out, call.out, [copier(arriving, x)], [copier(out, out, scale)] if scale != 1 else [])
