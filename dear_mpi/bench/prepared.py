"""What a backend is given, and what it makes of it."""

from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.bench.case import Case
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array


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
    """What a backend is given: a case, its arrays, the ranks, and the largest message."""

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


def of_plan(plan: Plan) -> Prepared:
    return Prepared(plan, plan.free, segment_bytes=plan.segment_bytes, chosen=plan.algorithm)
