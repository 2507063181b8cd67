"""The backends that take part in the benchmark of a collective.

    native...     the MPI library's own calls (native.py)
    prototype     a ring on a page of mpi4py (all_reduce alone)
    gloo          torch.distributed (gloo.py)
    host copies   of device memory: out, the ring of the host, in
    staged        the ring, through pinned host memory
    direct        the ring, where MPI takes device memory
    function      a user's call of ours, as all_reduce(x, comm, algorithm="auto"), on a private array

These are in ``BACKENDS``. Every other name is a plan of ours, by what ``make_plan`` calls an algorithm; ``openmpi`` and
``mpich`` run in a job of their own (other_mpi.py).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from dear_mpi.bench.case import CannotRun
from dear_mpi.bench.gloo import check_torch, gloo_call, gloo_group
from dear_mpi.bench.native import FORMS, native_call
from dear_mpi.bench.prepared import Prepared, Setup, of_plan
from dear_mpi.bench.prototype import PrototypeRing
from dear_mpi.collectives.plans import functions
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.array import synchronize
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.slab import Slab
from dear_mpi.ranks.world import World

DEFAULTS = {
    "cpu": ("native-best", "ring", "auto", "function", "prototype"),
    "cuda": ("host copies", "staged", "direct", "native"),
}


def host_copies(setup: Setup) -> Prepared:
    """What one does without this package: copy the device's buffer out, run the collective on the host, copy it in."""
    if setup.out is not None:
        raise CannotRun("works in place alone")
    host = Slab.pinned(setup.x).empty(setup.x.size, setup.x.dtype)
    copy_out, copy_in = copier(host, setup.x), copier(setup.x, host)
    plan = replace(setup, x=host).plan("ring")

    def run() -> None:
        copy_out()
        synchronize(setup.x)
        plan()
        copy_in()

    return Prepared(run, plan.free)


def prototype(setup: Setup) -> Prepared:
    case, transport = setup.case, setup.transport
    if (case.collective, case.op, setup.out) != ("all_reduce", "sum", None) or case.dtype not in ("fp32", "fp64"):
        raise CannotRun("sums fp32 or fp64 in all_reduce, in place")
    if case.count % transport.size:
        raise CannotRun("needs equal chunks")
    ring = PrototypeRing(setup.x, transport.native, tag=transport.next_tag(), segment_bytes=setup.segment_bytes)
    return Prepared(ring, ring.free)


def function(setup: Setup) -> Prepared:
    """What a program has that calls a function on an array of its own: it looks for its plan each time."""
    case, options = setup.case, {"op": setup.case.op} if setup.case.reduces else {}
    call = partial(getattr(functions, case.collective), out=setup.out, algorithm="auto", **options)
    return Prepared(lambda: call(setup.x, setup.transport))


def gloo(setup: Setup) -> Prepared:
    return Prepared(gloo_call(setup.case, setup.x, setup.out, setup.transport.rank, setup.transport.size))


def staged(setup: Setup) -> Prepared:
    if setup.case.device == "cpu":
        raise CannotRun("stages the memory of a device, and host memory needs none of it")
    return of_plan(replace(setup, transport=StagedTransport(setup.transport)).plan("ring"))


def direct(setup: Setup) -> Prepared:
    if not setup.transport.takes(setup.x):
        raise CannotRun("this MPI does not take device memory")
    return of_plan(setup.plan("ring"))


@dataclass(frozen=True)
class Backend:
    """A way to carry a collective out that is no plan of ours, and how the benchmark treats it."""

    open: Callable[[Setup], Prepared]
    maker: str = "ours"  # or MPI, for the libraries that ours are compared with; or others
    segments: bool = True  # whether the size of the largest message makes a difference to it
    processes: bool = False  # whether its ranks must be the processes of an MPI job
    alone: bool = False  # whether it takes its turns apart from the others, which its threads would disturb
    check: Callable[[], object] = lambda: None  # raises a ValueError where it cannot be had at all
    session: Callable[[World], AbstractContextManager[str]] | None = None  # around all its cases; gives its long name


BACKENDS = {
    **{
        f"native{suffix}": Backend(partial(native_call, form=form), maker="MPI", segments=False, processes=True)
        for suffix, form in FORMS.items()
    },
    "prototype": Backend(prototype, maker="others", processes=True),
    "gloo": Backend(gloo, "others", segments=False, processes=True, alone=True, check=check_torch, session=gloo_group),
    "host copies": Backend(host_copies, maker="others"),
    "staged": Backend(staged),
    "direct": Backend(direct),
    "function": Backend(function, segments=False),
}


def has_segments(name: str) -> bool:
    """Whether the size of the largest message makes a difference; ``auto`` has its own."""
    return BACKENDS[name].segments if name in BACKENDS else rules_of(name) is None


def open_backend(name: str, setup: Setup) -> Prepared:
    """A backend, prepared for a case; a CannotRun where it sits this one out, or there is no such algorithm."""
    backend = BACKENDS.get(name, Backend(lambda setup: of_plan(setup.plan(name))))
    if backend.processes and setup.transport.native is None:
        raise CannotRun(f"needs messages of MPI itself, not {setup.transport.name}")
    try:
        return backend.open(setup)
    except ArgumentError as error:
        raise CannotRun(str(error)) from None
