"""Find candidates by their names: MPI calls, functions below, extras', algorithms of ``make_plan``."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from dear_mpi.bench.case import CannotRun, Case, Prepared, Setup
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.native import FORMS, native, one_by_one
from dear_mpi.collectives.plans import functions
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.program.user_file import WithExtras
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.array import synchronize
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.slab import Slab
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import format_bytes


def host_copies(setup: Setup) -> Prepared:
    if setup.out is not None:
        raise CannotRun("works only in place")
    host = Slab.pinned(setup.x).empty(setup.x.size, setup.x.dtype)
    plan = replace(setup, x=host).plan("ring")
    come, go = copier(host, setup.x), copier(setup.x, host)
    return Prepared(one_by_one([come, partial(synchronize, setup.x), plan, go]), plan.free)


def function(setup: Setup) -> Prepared:
    """Call by function on a private array; each call looks up its plan."""
    options = {"op": setup.case.op} if setup.case.reduces else {}
    call = getattr(functions, setup.case.collective)
    return Prepared(partial(call, setup.x, setup.transport, out=setup.out, algorithm="auto", **options))


def staged(setup: Setup) -> Prepared:
    if setup.case.device == "cpu":
        raise CannotRun("stages the memory of a device, and host memory needs none of it")
    return replace(setup, transport=StagedTransport(setup.transport)).prepared("ring")


def direct(setup: Setup) -> Prepared:
    """Run the ring on device memory that MPI accepts."""
    if not setup.transport.takes(setup.x):
        raise CannotRun("this MPI does not take device memory")
    return setup.prepared("ring")


DEFAULTS = {
    "cpu": ("native-best", "ring", "auto", "function"),
    "cuda": ("host copies", "staged", "direct", "native"),
}
LIBRARY, BEST = "native", "-best"  # this job's MPI; a suffix: its fastest call


@dataclass(frozen=True)
class Candidate:
    open: Callable[..., Prepared]  # of a Setup; ArgumentError or CannotRun leaves a case out
    maker: str = "ours"  # or others, or LIBRARY
    is_plan: bool = False  # in the memory of a user's program
    segments: bool = True  # whether their size matters
    check: Callable[[], object] = lambda: None  # ValueError: not available
    # Wraps all cases of a backend with threads, which takes turns separately. Yields its long name.
    session: Callable[[World], AbstractContextManager[str]] | None = None

    @property
    def is_library(self) -> bool:
        return self.maker == LIBRARY


CANDIDATES = WithExtras(
    {
        "host copies": Candidate(host_copies, "others"),
        "staged": Candidate(staged),
        "direct": Candidate(direct),
        "function": Candidate(function, segments=False),
    },
    "candidates",
)
LIBRARY_CALLS = {
    f"{LIBRARY}{suffix}": Candidate(partial(native, form=form), LIBRARY, segments=False)
    for suffix, form in [*FORMS.items(), (BEST, FORMS[""])]
}


def candidate(name: str) -> Candidate:
    """Find a candidate; a text after the colon of an extra's name goes to its ``open``."""
    extra, colon, text = name.partition(":")
    if colon and extra in CANDIDATES:
        return replace(CANDIDATES[extra], open=partial(CANDIDATES[extra].open, text=text))
    has_rules = name.partition(":")[0] == "auto"  # rules contain segments
    plan = Candidate(lambda setup: setup.prepared(name), is_plan=True, segments=not has_rules)
    return LIBRARY_CALLS.get(name) or CANDIDATES.get(name, plan)


def label(algorithm: str, chosen: str | None, segment_bytes: int | None = None) -> str:
    """Name a candidate, its choice, and a segment that matters.

    >>> label("auto", "ring"), label("ring", "ring", 4096), label("native", None, 4096)
    ('auto (ring)', 'ring, 4 KiB', 'native')
    """
    name = algorithm if chosen in (None, algorithm) else f"{algorithm} ({chosen})"
    is_ours = candidate(algorithm).maker == "ours"
    return name if segment_bytes is None or not is_ours else f"{name}, {format_bytes(segment_bytes)}"


def labels(rows: Sequence[Row]) -> list[str]:
    cuts = len({row.segment_bytes for row in rows}) > 1
    return [label(row.algorithm, row.chosen, row.segment_bytes if cuts else None) for row in rows]


def calls_of(name: str, case: Case, ranks: int) -> list[str]:
    """Expand ``native-best`` to all suitable MPI calls."""
    if name != LIBRARY + BEST:
        return [name]
    return [LIBRARY + suffix for suffix, form in FORMS.items() if not form.why_not(case, ranks)]


def prepare(name: str, setup: Setup) -> Prepared:
    """CannotRun: the candidate has no call for this case."""
    who = candidate(name)
    if not who.is_library and setup.case.collective not in COLLECTIVES:
        raise CannotRun("has no program for it: only MPI's own calls are measured")
    if (who.is_library or who.session) and setup.transport.native is None:
        raise CannotRun(f"needs messages of MPI itself, not {setup.transport.name}")
    try:
        return who.open(setup)
    except ArgumentError as error:
        raise CannotRun(str(error)) from None
