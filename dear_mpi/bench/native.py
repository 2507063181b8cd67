"""The calls that an MPI library has for a collective: the fastest of them is what ours are held against.

    native          blocking; MPI_Reduce_scatter_block and MPI_Allgather where all shards are equal
    -nonblocking    MPI_Iallreduce and a wait
    -persistent     MPI_Allreduce_init once; a start and a wait in each call (MPI-4)
    -counts         MPI_Reduce_scatter and MPI_Allgatherv, which are given the count of each rank
    -beside         from the buffer into a second one, where all others work in place
    -best           all of these that there are for a collective

What brings the result from where a call leaves it to where it belongs is not timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dear_mpi.bench.case import CannotRun, Case
from dear_mpi.bench.prepared import Prepared, Setup
from dear_mpi.collectives.plans.runners.native import move, mpi_call
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.array import array_module
from dear_mpi.kernels.calls import copier

RunAndFree = tuple[Callable[[], object], Callable[[], object]]


def blocking(comm: Any, name: str, arguments: Sequence[Any]) -> RunAndFree:
    return partial(getattr(comm, name), *arguments), lambda: None


def nonblocking(comm: Any, name: str, arguments: Sequence[Any]) -> RunAndFree:
    start = getattr(comm, f"I{name.lower()}")
    return lambda: start(*arguments).Wait(), lambda: None


def persistent(comm: Any, name: str, arguments: Sequence[Any]) -> RunAndFree:
    try:
        request = getattr(comm, f"{name}_init")(*arguments)
    except (AttributeError, NotImplementedError):
        raise CannotRun(f"this MPI, or mpi4py, has no MPI_{name}_init") from None

    def run() -> None:
        request.Start()
        request.Wait()

    return run, request.Free


@dataclass(frozen=True)
class Form:
    """One of the calls; see above."""

    prepare: Callable[[Any, str, Sequence[Any]], RunAndFree] = blocking
    counts: bool = False
    beside: bool = False

    def serves(self, case: Case, ranks: int) -> bool:
        """Whether this form is worth a row of its own: see the message of ``native_call``."""
        if self.counts and (case.collective not in ("reduce_scatter", "all_gather") or case.count % ranks):
            return False
        return not self.beside or (case.collective in ("reduce_scatter", "all_reduce") and case.placement == "in")


FORMS = {  # by what follows the library in a backend's name
    "": Form(),
    "-nonblocking": Form(nonblocking),
    "-persistent": Form(persistent),
    "-counts": Form(counts=True),
    "-nonblocking-counts": Form(nonblocking, counts=True),
    "-persistent-counts": Form(persistent, counts=True),
    "-beside": Form(beside=True),
    "-counts-beside": Form(counts=True, beside=True),
}
BEST = "-best"
LIBRARIES = {"native": "this job's", "openmpi": "Open MPI's", "mpich": "MPICH's"}


def mpi_of(name: str) -> str | None:
    """The library whose call, or whose calls, a backend's name means; None for other backends.

    >>> mpi_of("native"), mpi_of("mpich-best"), mpi_of("ring")
    ('native', 'mpich', None)
    """
    library, dash, form = name.partition("-")
    return library if library in LIBRARIES and dash + form in (*FORMS, BEST) else None


def calls_of(name: str, case: Case, ranks: int) -> list[str]:
    """What a backend's name stands for in a case: all calls of a library that serve it, or itself.

    >>> calls_of("mpich-best", Case("all_reduce", 64), 2)
    ['mpich', 'mpich-nonblocking', 'mpich-persistent', 'mpich-beside']
    """
    library = mpi_of(name)
    if library is None or name != library + BEST:
        return [name]
    return [library + suffix for suffix, form in FORMS.items() if form.serves(case, ranks)]


def native_call(setup: Setup, form: Form) -> Prepared:
    """A call of the library; a plan of ours around it where there is none for these arrays, or this op."""
    case, ranks = setup.case, setup.transport.size
    if not form.serves(case, ranks):
        what = "-counts only for reduce_scatter and all_gather of equal shards"
        raise CannotRun(f"{what}, -beside only for reduce_scatter and all_reduce in place")
    plan = setup.plan("native")  # an ArgumentError where the library cannot do it
    if case.device != "cpu" or case.op == "average" or (setup.out is not None and case.collective == "broadcast"):
        if form != FORMS[""]:
            plan.free()
            raise CannotRun("is the MPI call alone: for host memory, no average, and broadcasts in place")
        return Prepared(plan, plan.free)
    plan.free()
    partition, rank = Partition.of(case.count, ranks), setup.transport.rank
    own = partition.shard(rank)
    scatters, result = case.collective == "reduce_scatter", setup.out
    untimed: Callable[[], object] = lambda: None  # noqa: E731
    if result is None and form.beside:
        home = setup.x[own] if scatters else setup.x
        result = array_module(setup.x).empty_like(home)
        untimed = copier(home, result)
    elif result is None and scatters:  # MPI leaves the shard at the start of the buffer
        untimed = partial(move, setup.x[own], setup.x[: own.stop - own.start])
    op = case.op if case.reduces else "sum"
    call = mpi_call(case.collective, setup.x, result, partition, rank=rank, op=op, by_counts=form.counts)
    run, free = form.prepare(setup.transport.native, *call)
    return Prepared(run, free, untimed)
