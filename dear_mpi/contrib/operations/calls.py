"""Measure what only MPI libraries execute: rooted collectives, barriers, and messages.

Gather and scatter; sendrecv (each rank to its successor); barrier; osu_latency, osu_bw and osu_bibw as ping_pong,
bandwidth and both_ways, timed on the first of the two ranks. Messages go in stages, all in flight at once.
Source: OSU Micro-Benchmarks 7.4 (c/mpi/pt2pt/standard).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dear_mpi.bench.case import CannotRun, Operation, Prepared, Setup
from dear_mpi.bench.native import Form, MpiCall, blocking, one_by_one, prebuilt
from dear_mpi.collectives import Partition
from dear_mpi.collectives.launch.cuda_aware import built_for
from dear_mpi.collectives.plans.runners.native import INT_MAX, too_many
from dear_mpi.collectives.program.program import Contract, root, the_owner
from dear_mpi.kernels.array import Array, library_of, synchronize

DATA, ANSWER = 1, 2  # tags


def prepare(setup: Setup, form: Form) -> Prepared:
    """Raise CannotRun if MPI does not take the arrays."""
    case, x, transport = setup.case, setup.x, setup.transport
    taken = transport.takes(x)
    if case.operation.contract is not None:
        assert transport.native is not None, "prepare has seen it"
        taken = built_for(x, transport.native, taken=taken)
    if case.operation.sized and not taken:
        raise CannotRun(f"needs an MPI built for GPUs, which {transport.name.partition(';')[0]} is not")
    if too_many(case.nbytes):
        raise CannotRun(f"takes at most {INT_MAX} bytes, as MPI before version 4, not {case.nbytes}")
    stages = messages(setup, form) if case.operation.is_messages else [[parts_call(setup, by_counts=form.counts)]]
    prepared = form.prepare(transport.native, stages)
    if library_of(x) == "numpy":
        return prepared
    return replace(prepared, run=one_by_one([partial(synchronize, x), prepared.run]))  # MPI ignores streams


def messages(setup: Setup, form: Form) -> list[list[MpiCall]]:
    """Return this rank's messages by stage."""
    case, rank, ranks, arrive = setup.case, setup.transport.rank, setup.transport.size, setup.out
    source, dest = (ranks - 1 - rank,) * 2 if case.operation.pair else ((rank - 1) % ranks, (rank + 1) % ranks)
    if case.collective == "sendrecv" and form.prepare is blocking:
        sent = octets(setup.x)
        if arrive is None:
            return [[("Sendrecv_replace", (sent, dest, DATA, source, DATA))]]
        return [[("Sendrecv", (sent, dest, DATA, octets(arrive), source, DATA))]]
    assert arrive is not None, "Form.why_not has seen it"
    window = case.window
    sends: list[MpiCall] = [("Send", (octets(setup.x), dest, DATA))] * (window if setup.x.size else 0)
    places = arrive.reshape(window, -1) if arrive.size else ()
    receives: list[MpiCall] = [("Recv", (octets(place), source, DATA)) for place in places]
    match case.collective:
        case "ping_pong":
            found = [receives, sends] if rank else [sends, receives]
        case "bandwidth":  # a byte answers that all have arrived
            byte = octets(np.zeros(1, np.uint8))
            answers: list[MpiCall] = [("Recv", (byte, dest, ANSWER)) for _ in sends[:1]]
            answers += [("Send", (byte, source, ANSWER)) for _ in receives[:1]]
            found = [sends + receives, answers]
        case _:
            found = [receives + sends]
    return [stage for stage in found if stage]


def parts_call(setup: Setup, *, by_counts: bool) -> MpiCall:
    """Return a barrier, gather or scatter; with counts if parts differ, or on request. None is MPI_IN_PLACE."""
    case, x, out, rank = setup.case, setup.x, setup.out, setup.transport.rank
    if not case.operation.sized:
        return "Barrier", ()
    partition, gathers, is_root = Partition.of(case.count, setup.transport.size), case.collective == "gather", rank == 0
    by_counts, own = by_counts or len(set(partition.counts)) > 1, partition.shard(rank)
    nbytes = [count * x.itemsize for count in partition.counts]

    def whole(array: Array) -> list[Any]:
        return [array.view("u1"), nbytes if by_counts else nbytes[rank], "B"]

    mine = x[own] if out is None else x if gathers else out
    part = None if is_root and out is None else octets(mine)
    all_parts = whole(out if gathers and out is not None else x) if is_root else None
    arguments = (part, all_parts, 0) if gathers else (all_parts, part, 0)
    return f"{case.collective.capitalize()}{'v' * by_counts}", [prebuilt(each) for each in arguments]


def octets(array: Array) -> Any:
    from mpi4py import MPI

    return prebuilt([array.view("u1"), MPI.BYTE])


WINDOW = 64  # as in OSU
PAIR = "a message between the first and the last rank"
GATHER = Operation("the buffer that the root ends with", "(n-1)/n", Contract(the_owner, root), calls=prepare)
SCATTER = Operation("the buffer that the root brings", "(n-1)/n", Contract(root, the_owner), calls=prepare)
SENDRECV = Operation("a message to the successor", source=lambda rank, ranks: (rank - 1) % ranks, calls=prepare)
BARRIER = Operation("nothing", "0", calls=prepare)
PING_PONG = Operation(
    f"{PAIR}, and back; time is for one way",
    source=lambda rank, ranks: {0: ranks - 1, ranks - 1: 0}.get(rank),
    pair=True,
    parts=2,
    calls=prepare,
)
BANDWIDTH = Operation(
    f"{PAIR}, of many in a row; time is for one of them",
    source=lambda rank, ranks: 0 if rank == ranks - 1 else None,
    pair=True,
    window=WINDOW,
    calls=prepare,
)
BOTH_WAYS = replace(
    PING_PONG,
    size=f"{PAIR}, of many in a row in each direction; time is for one of each",
    busbw="2",
    window=WINDOW,
    parts=1,
)
