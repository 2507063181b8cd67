"""Prepare an MPI library's calls for a case; our plans are compared with the fastest of them.

    native          blocking; MPI_Reduce_scatter_block and MPI_Allgather if all shards are equal
    -nonblocking    MPI_Iallreduce and a wait
    -persistent     MPI_Allreduce_init once; a start and a wait in each call (MPI-4)
    -counts         MPI_Reduce_scatter, MPI_Allgatherv, MPI_Gatherv and MPI_Scatterv, with each rank's count
    -beside         from the buffer into a second one; all other calls work in place

Moving the result is not timed. The calls of a stage are in flight at once.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.bench.case import CannotRun, Case, Prepared, Setup
from dear_mpi.collectives.plans.runners.native import move, mpi_call
from dear_mpi.collectives.program.program import Partition
from dear_mpi.kernels.array import array_module, library_of
from dear_mpi.kernels.calls import copier

Call: TypeAlias = Callable[[], Any]
MpiCall: TypeAlias = tuple[str, Sequence[Any]]
"""The name of mpi4py's blocking call, and its arguments, which all forms share."""


class All:
    def __init__(self, requests: Sequence[Any]) -> None:
        self.requests = requests

    def Test(self) -> bool:
        return bool(type(self.requests[0]).Testall(self.requests))

    def Wait(self) -> None:
        type(self.requests[0]).Waitall(self.requests)


def one_by_one(calls: Sequence[Call]) -> Call:
    """Combine calls; two, the usual case, avoid a loop's 0.04 us."""
    if len(calls) == 1:
        return calls[0]
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


def starter(comm: Any, stage: Sequence[MpiCall]) -> Call:
    """Return a function that starts a stage's calls and returns their request."""
    calls = [partial(getattr(comm, f"I{name.lower()}"), *arguments) for name, arguments in stage]
    return calls[0] if len(calls) == 1 else lambda: All([call() for call in calls])


def blocking(comm: Any, stages: Sequence[Sequence[MpiCall]]) -> Prepared:
    def call_of(stage: Sequence[MpiCall]) -> Call:
        if len(stage) > 1:
            begin = starter(comm, stage)
            return lambda: begin().Wait()
        ((name, arguments),) = stage
        return partial(getattr(comm, name), *arguments)

    return Prepared(one_by_one(list(map(call_of, stages))))


def nonblocking(comm: Any, stages: Sequence[Sequence[MpiCall]]) -> Prepared:
    (stage,) = stages
    begin = starter(comm, stage)
    return Prepared(lambda: begin().Wait(), startable=begin)


def persistent(comm: Any, stages: Sequence[Sequence[MpiCall]]) -> Prepared:
    def made(name: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(comm, f"{name}_init")(*arguments)
        except (AttributeError, NotImplementedError):
            raise CannotRun(f"this MPI, or mpi4py, has no MPI_{name}_init") from None

    def call_of(requests: list[Any]) -> Call:
        if len(requests) == 1:
            return one_by_one([requests[0].Start, requests[0].Wait])
        return one_by_one([partial(type(requests[0]).Startall, requests), All(requests).Wait])

    found = [[made(*call) for call in stage] for stage in stages]
    frees = [request.Free for requests in found for request in requests]
    return Prepared(one_by_one(list(map(call_of, found))), one_by_one(frees))


COUNTED = ("reduce_scatter", "all_gather", "gather", "scatter")


@dataclass(frozen=True)
class Form:
    prepare: Callable[[Any, Sequence[Sequence[MpiCall]]], Prepared] = blocking
    counts: bool = False
    beside: bool = False

    def why_not(self, case: Case, ranks: int) -> str:
        """Return why a case has no row for this form, or ""."""
        if self.counts and (case.collective not in COUNTED or case.count % ranks):
            return f"-counts only for {', '.join(COUNTED)} of equal shards"
        if self.beside and not (case.collective in ("reduce_scatter", "all_reduce") and case.placement == "in"):
            return "-beside only for reduce_scatter and all_reduce in place"
        if case.operation.pair and self.prepare is nonblocking:
            return f"{case.collective} has only native and -persistent"
        if case.collective == "sendrecv" and case.placement == "in" and self.prepare is not blocking:
            return "sendrecv in place is only MPI_Sendrecv_replace"
        return ""


FORMS = {  # by suffix of a candidate
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
    if why := form.why_not(setup.case, setup.transport.size):
        raise CannotRun(why)
    return (setup.case.operation.calls or with_program)(setup, form)


def with_program(setup: Setup, form: Form) -> Prepared:
    """Prepare a collective with a program; our plan if MPI lacks the arrays or the op."""
    case, x, result, ranks = setup.case, setup.x, setup.out, setup.transport.size
    plan = setup.plan("native")  # ArgumentError: the library cannot do it
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
    elif result is None and scatters:  # MPI leaves the shard at the start
        untimed = partial(move, x[own], x[: own.stop - own.start])
    op = case.op if case.reduces else "sum"
    name, arguments = mpi_call(case.collective, x, result, partition, rank=rank, op=op, by_counts=form.counts)
    prepared = form.prepare(setup.transport.native, [[(name, [prebuilt(each) for each in arguments])]])
    return replace(prepared, untimed=untimed)


def prebuilt(argument: Any) -> Any:
    """Build once: saves mpi4py at least 0.1 us per lookup."""
    from mpi4py import MPI

    array, *said = argument if isinstance(argument, list) else [argument]
    if library_of(array) != "numpy" or not array.flags.c_contiguous:
        return argument
    if not said:
        with suppress(ValueError):  # no such type in MPI
            kind = MPI.Datatype.fromcode(array.dtype.char)
            said = [] if kind == MPI.DATATYPE_NULL else [kind]
    return [MPI.buffer.frombuffer(array), *said] if said else argument


def call_alone(collective: str) -> Callable[[], object]:
    """Return a barrier or 4-byte collective on this rank: the cost of a call from Python."""
    from mpi4py import MPI

    if collective == "barrier":
        return MPI.COMM_SELF.Barrier
    x, out = np.zeros(1, "f4"), np.zeros(1, "f4")
    name, arguments = mpi_call(collective, x, out, Partition.of(1, 1), rank=0, op="sum")
    return partial(getattr(MPI.COMM_SELF, name), *map(prebuilt, arguments))
