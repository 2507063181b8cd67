"""Prepare an MPI library's calls for a case; our plans are compared with the fastest of them.

    native          blocking; MPI_Reduce_scatter_block and MPI_Allgather if all shards are equal
    -nonblocking    MPI_Iallreduce and a wait
    -persistent     MPI_Allreduce_init once; a start and a wait in each call (MPI-4)
    -counts         MPI_Reduce_scatter, MPI_Allgatherv, MPI_Gatherv and MPI_Scatterv, with each rank's count
    -beside         from the buffer into a second one; all other calls work in place

Moving the result to its place is not timed. Messages are sent as in OSU's point-to-point benchmarks:

    native          MPI_Send and MPI_Recv; MPI_Sendrecv, in place MPI_Sendrecv_replace; for several messages at once
                    MPI_Isend and MPI_Irecv, as in osu_bw
    -nonblocking    the ring by MPI_Isend and MPI_Irecv
    -persistent     MPI_Send_init and MPI_Recv_init once; starts and waits in each call, as in osu_bw_persistent

A rank runs a few stages. All messages of a stage are in flight at once, and the stage ends with the last one. Source:
OSU Micro-Benchmarks 7.4, c/mpi/pt2pt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.bench.case import CannotRun, Case, Prepared, Setup
from dear_mpi.collectives.launch.cuda_aware import built_for
from dear_mpi.collectives.plans.runners.native import INT_MAX, move, mpi_call, octets, prebuilt, too_many
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.kernels.array import Array, array_module, library_of, synchronize
from dear_mpi.kernels.calls import copier

DATA, ANSWER = 1, 2  # tags
Call: TypeAlias = Callable[[], Any]


class Message(NamedTuple):
    """One end of a message; ``verb`` is send or recv."""

    verb: str
    data: Array
    peer: int
    tag: int = DATA

    def call(self, comm: Any, name: str) -> Call:
        """Return mpi4py's call; {} in ``name`` is replaced with the verb."""
        return partial(getattr(comm, name.format(self.verb).capitalize()), octets(self.data), self.peer, self.tag)


def neighbours(setup: Setup) -> tuple[int, int]:
    """Return source and destination of this rank's messages."""
    rank, ranks = setup.transport.rank, setup.transport.size
    return (ranks - 1 - rank,) * 2 if setup.case.operation.pair else ((rank - 1) % ranks, (rank + 1) % ranks)


def stages(setup: Setup) -> list[list[Message]]:
    """Return this rank's messages by stage, if they arrive in a second buffer; empty if it has none."""
    (source, dest), window, arrive = neighbours(setup), setup.case.window, setup.out
    assert arrive is not None, "Form.why_not has seen it"
    sends = [Message("send", setup.x, dest)] * (window if setup.x.size else 0)
    receives = [Message("recv", place, source) for place in arrive.reshape(window, -1)] if arrive.size else []
    match setup.case.collective:
        case "ping_pong":
            found = [receives, sends] if setup.transport.rank else [sends, receives]
        case "bandwidth":  # a byte tells the sender that all messages have arrived
            byte = np.zeros(1, np.uint8)
            answers = [Message("recv", byte, each.peer, ANSWER) for each in sends[:1]]
            answers += [Message("send", byte, each.peer, ANSWER) for each in receives[:1]]
            found = [sends + receives, answers]
        case _:
            found = [receives + sends]
    return [stage for stage in found if stage]


class All:
    """Several requests as one."""

    def __init__(self, requests: Sequence[Any]) -> None:
        self.requests = requests

    def Test(self) -> bool:
        return bool(type(self.requests[0]).Testall(self.requests))

    def Wait(self) -> None:
        type(self.requests[0]).Waitall(self.requests)


def begins(setup: Setup, stage: Sequence[Message]) -> Callable[[], All]:
    calls = [message.call(setup.transport.native, "i{}") for message in stage]
    return lambda: All([call() for call in calls])


def one_by_one(calls: Sequence[Call]) -> Call:
    """Combine calls into one; two calls, the usual case, avoid a loop's 0.04 us."""
    if len(calls) == 2:
        first, second = calls

        def both() -> None:
            first()
            second()

        return both

    def run() -> None:
        for call in calls:
            call()

    return run


def send_blocking(setup: Setup) -> Prepared:
    comm, (source, dest) = setup.transport.native, neighbours(setup)
    assert comm is not None, "prepare has seen it"
    if setup.case.collective == "sendrecv":
        sent, arrive = octets(setup.x), setup.out
        if arrive is None:
            return Prepared(partial(comm.Sendrecv_replace, sent, dest, DATA, source, DATA))
        return Prepared(partial(comm.Sendrecv, sent, dest, DATA, octets(arrive), source, DATA))

    def call_of(stage: Sequence[Message]) -> Call:
        if len(stage) == 1:
            return stage[0].call(comm, "{}")
        begin = begins(setup, stage)
        return lambda: begin().Wait()

    return Prepared(one_by_one([call_of(stage) for stage in stages(setup)]))


def send_persistent(setup: Setup) -> Prepared:
    made = [[message.call(setup.transport.native, "{}_init")() for message in stage] for stage in stages(setup)]
    requests = [request for stage in made for request in stage]

    def call_of(stage: list[Any]) -> Call:
        if len(stage) == 1:
            return one_by_one([stage[0].Start, stage[0].Wait])
        return one_by_one([partial(type(stage[0]).Startall, stage), All(stage).Wait])

    return Prepared(one_by_one(list(map(call_of, made))), one_by_one([request.Free for request in requests]))


def blocking(comm: Any, name: str, arguments: Sequence[Any]) -> Prepared:
    return Prepared(partial(getattr(comm, name), *arguments))


class Nonblocking:
    """A call that returns a request."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def start(self) -> None:
        self.request = self.call()

    def advance(self) -> bool:
        return bool(self.request.Test())

    def wait(self) -> None:
        self.request.Wait()


def nonblocking(comm: Any, name: str, arguments: Sequence[Any]) -> Prepared:
    start = getattr(comm, f"I{name.lower()}")
    return Prepared(lambda: start(*arguments).Wait(), startable=Nonblocking(partial(start, *arguments)))


def persistent(comm: Any, name: str, arguments: Sequence[Any]) -> Prepared:
    try:
        request = getattr(comm, f"{name}_init")(*arguments)
    except (AttributeError, NotImplementedError):
        raise CannotRun(f"this MPI, or mpi4py, has no MPI_{name}_init") from None

    def run() -> None:
        request.Start()
        request.Wait()

    return Prepared(run, request.Free)


def send_nonblocking(setup: Setup) -> Prepared:
    (stage,) = stages(setup)  # of a ring
    begin = begins(setup, stage)
    return Prepared(lambda: begin().Wait(), startable=Nonblocking(begin))


Prepare: TypeAlias = Callable[[Any, str, Sequence[Any]], Prepared]
OF_MESSAGES: Mapping[Prepare, Callable[[Setup], Prepared]] = {
    blocking: send_blocking,
    nonblocking: send_nonblocking,
    persistent: send_persistent,
}
COUNTED = ("reduce_scatter", "all_gather", "gather", "scatter")


@dataclass(frozen=True)
class Form:
    """A form of MPI calls."""

    prepare: Prepare = blocking
    counts: bool = False
    beside: bool = False

    def why_not(self, case: Case, ranks: int) -> str:
        """Return the reason why a case has no row for this form; empty if it has one."""
        if self.counts and (case.collective not in COUNTED or case.count % ranks):
            return f"-counts only for {', '.join(COUNTED)} of equal shards"
        if self.beside and not (case.collective in ("reduce_scatter", "all_reduce") and case.placement == "in"):
            return "-beside only for reduce_scatter and all_reduce in place"
        if case.operation.pair and self.prepare is nonblocking:
            return f"{case.collective} has only native and -persistent"
        if case.collective == "sendrecv" and case.placement == "in" and self.prepare is not blocking:
            return "sendrecv in place is only MPI_Sendrecv_replace"
        return ""


FORMS = {  # by the suffix of a candidate's name
    "": Form(),
    "-nonblocking": Form(nonblocking),
    "-persistent": Form(persistent),
    "-counts": Form(counts=True),
    "-nonblocking-counts": Form(nonblocking, counts=True),
    "-persistent-counts": Form(persistent, counts=True),
    "-beside": Form(beside=True),
    "-counts-beside": Form(counts=True, beside=True),
}


def native(setup: Setup, form: Form) -> Prepared:
    """Prepare an MPI library's call."""
    if why := form.why_not(setup.case, setup.transport.size):
        raise CannotRun(why)
    return with_program(setup, form) if setup.case.collective in COLLECTIVES else without_program(setup, form)


def with_program(setup: Setup, form: Form) -> Prepared:
    """Prepare a call for a collective with a program; our plan if MPI lacks the arrays or the op."""
    case, x, result, ranks = setup.case, setup.x, setup.out, setup.transport.size
    plan = setup.plan("native")  # an ArgumentError if the library cannot do it
    alone = case.device == "cpu" and case.op != "average" and (result is None or case.collective != "broadcast")
    if not alone and form == FORMS[""]:
        return Prepared(plan, plan.free)
    plan.free()
    if not alone:
        raise CannotRun("is only the MPI call: for host memory, no average, and broadcasts in place")
    partition, rank = Partition.of(case.count, ranks), setup.transport.rank
    scatters = case.collective == "reduce_scatter"
    own, untimed = partition.shard(rank), Prepared.untimed
    if result is None and form.beside:
        home = x[own] if scatters else x
        result = array_module(x).empty_like(home)
        untimed = copier(home, result)
    elif result is None and scatters:  # MPI leaves the shard at the start of the buffer
        untimed = partial(move, x[own], x[: own.stop - own.start])
    op = case.op if case.reduces else "sum"
    name, arguments = mpi_call(case.collective, x, result, partition, rank=rank, op=op, by_counts=form.counts)
    prepared = form.prepare(setup.transport.native, name, [prebuilt(each) for each in arguments])
    return replace(prepared, untimed=untimed)


def without_program(setup: Setup, form: Form) -> Prepared:
    case, x, comm = setup.case, setup.x, setup.transport.native
    assert comm is not None, "prepare has seen it"
    check_memory(setup, comm)
    if case.operation.least_ranks > 1:
        prepared = OF_MESSAGES[form.prepare](setup)
    else:
        name, arguments = parts_call(setup, by_counts=form.counts)
        prepared = form.prepare(comm, name, [prebuilt(each) for each in arguments])
    if library_of(x) == "numpy":
        return prepared
    return replace(prepared, run=one_by_one([partial(synchronize, x), prepared.run]))  # MPI ignores streams


def check_memory(setup: Setup, comm: Any) -> None:
    """Raise a CannotRun if this MPI does not accept the arrays."""
    case, transport = setup.case, setup.transport
    taken = transport.takes(setup.x)
    if case.operation.contract is not None:  # a collective needs more than messages
        taken = built_for(setup.x, comm, taken=taken)
    if case.operation.sized and not taken:
        raise CannotRun(f"needs an MPI built for GPUs, which {transport.name.partition(';')[0]} is not")
    if too_many(case.nbytes):
        raise CannotRun(f"takes at most {INT_MAX} bytes, as MPI before version 4, not {case.nbytes}")


def parts_call(setup: Setup, *, by_counts: bool) -> tuple[str, tuple[Any, ...]]:
    """Return name and arguments of the call for a barrier, a gather or a scatter; all forms share these arguments.

    MPI_Gatherv and MPI_Scatterv if parts differ, or on request. None is MPI_IN_PLACE.
    """
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
    return f"{case.collective.capitalize()}{'v' * by_counts}", arguments
