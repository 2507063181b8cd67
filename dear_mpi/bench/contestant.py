"""A contestant of the benchmark: what it is given, and what it makes of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dear_mpi.bench.case import Case
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.ranks.world import World


@dataclass(frozen=True)
class Prepared:
    """A collective that is prepared on its buffers; ``untimed`` is what comes after each run."""

    run: Callable[[], object]
    free: Callable[[], object] = lambda: None
    untimed: Callable[[], object] = lambda: None
    segment_bytes: int | None = None  # which a plan has chosen
    chosen: str | None = None  # the algorithm that a plan has chosen


@dataclass(frozen=True)
class Setup:
    """A case, its arrays, the ranks, and the largest message."""

    case: Case
    x: Array
    out: Array | None
    transport: Transport
    segment_bytes: int

    def plan(self, algorithm: str) -> Plan:
        case, op = self.case, self.case.op if self.case.reduces else "sum"
        segment = self.segment_bytes if rules_of(algorithm) is None else None  # auto has its own
        return make_plan(
            case.collective, self.x, self.transport, out=self.out, algorithm=algorithm, op=op, segment_bytes=segment
        )

    def prepared(self, algorithm: str) -> Prepared:
        plan = self.plan(algorithm)
        return Prepared(plan, plan.free, segment_bytes=plan.segment_bytes, chosen=plan.algorithm)


@dataclass(frozen=True)
class Contestant:
    """A way to carry collectives out, and how the benchmark treats it."""

    open: Callable[[Setup], Prepared]  # an ArgumentError or a CannotRun where it sits a case out
    maker: str = "ours"  # or others; or the MPI library whose call it is: native, openmpi, mpich
    is_plan: bool = False  # of ours, in the memory that it would have in a program
    segments: bool = True  # whether the size of the largest message makes a difference to it
    processes: bool = False  # whether its ranks must be the processes of an MPI job
    alone: bool = False  # whether it takes its turns apart from the others, which its threads would disturb
    check: Callable[[], object] = lambda: None  # raises a ValueError where it cannot be had at all
    session: Callable[[World], AbstractContextManager[str]] | None = None  # around all its cases; gives its long name

    @property
    def is_library(self) -> bool:
        """Whether it is a call of an MPI library."""
        return self.maker not in ("ours", "others")
