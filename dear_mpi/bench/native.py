"""The calls that an MPI library has for a collective: the fastest of them is what ours are held against.

    native          blocking; MPI_Reduce_scatter_block and MPI_Allgather where all shards are equal
    -nonblocking    MPI_Iallreduce and a wait
    -persistent     MPI_Allreduce_init once; a start and a wait in each call (MPI-4)
    -counts         MPI_Reduce_scatter and MPI_Allgatherv, which are given the count of each rank
    -beside         from the buffer into a second one, where all others work in place

What brings the result from where a call leaves it to where it belongs is not timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dear_mpi.bench.case import CannotRun, Case, Prepared, Setup
from dear_mpi.collectives.plans.runners.native import move, mpi_call, prebuilt
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.array import array_module
from dear_mpi.kernels.calls import copier

OTHERS = {"openmpi": "Open MPI", "mpich": "MPICH"}  # libraries that may run in a job of their own


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


@dataclass(frozen=True)
class Form:
    prepare: Callable[[Any, str, Sequence[Any]], Prepared] = blocking
    counts: bool = False
    beside: bool = False

    def serves(self, case: Case, ranks: int) -> bool:
        """Whether this form is worth a row of its own."""
        if self.counts and (case.collective not in ("reduce_scatter", "all_gather") or case.count % ranks):
            return False
        return not self.beside or (case.collective in ("reduce_scatter", "all_reduce") and case.placement == "in")


FORMS = {  # by what follows the library in a contestant's name
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
    """A call of the library; a plan of ours around it where there is none for these arrays, or this op."""
    case, x, result, ranks = setup.case, setup.x, setup.out, setup.transport.size
    if not form.serves(case, ranks):
        what = "-counts only for reduce_scatter and all_gather of equal shards"
        raise CannotRun(f"{what}, -beside only for reduce_scatter and all_reduce in place")
    plan = setup.plan("native")  # an ArgumentError where the library cannot do it
    alone = case.device == "cpu" and case.op != "average" and (result is None or case.collective != "broadcast")
    if not alone and form == FORMS[""]:
        return Prepared(plan, plan.free)
    plan.free()
    if not alone:
        raise CannotRun("is the MPI call alone: for host memory, no average, and broadcasts in place")
    partition, rank, scatters = (
        Partition.of(case.count, ranks),
        setup.transport.rank,
        case.collective == "reduce_scatter",
    )
    own, untimed = partition.shard(rank), Prepared.untimed
    if result is None and form.beside:
        home = x[own] if scatters else x
        result = array_module(x).empty_like(home)
        untimed = copier(home, result)
    elif result is None and scatters:  # MPI leaves the shard at the start of the buffer
        untimed = partial(move, x[own], x[: own.stop - own.start])
    op = case.op if case.reduces else "sum"
    call = mpi_call(case.collective, x, result, partition, rank=rank, op=op, by_counts=form.counts)
    name, arguments = call
    prepared = form.prepare(setup.transport.native, name, [prebuilt(each) for each in arguments])
    return replace(prepared, untimed=untimed)
