"""What is measured: one collective at one size; what a contestant makes of it, its samples, and the row of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.reporting.stats import median
from dear_mpi.training.declared import Declared, option

# busbw / algbw as nccl-tests defines it, for sizes of the full buffer: what crosses a rank's link per byte of it.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "reduce": lambda ranks: 1.0,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
}
OPS = ("sum", "average", "prod", "min", "max")
MEMORY = "Memory of our buffers on the CPU: shared (by the ranks of a host), private, or auto (by algorithm)."
CADENCE = (
    "isolated: a sample is one call, from a barrier to its end on the slowest rank. streaming: a sample is the mean "
    "over calls in a row and over ranks, and barriers between calls are not timed, as in the OSU benchmarks."
)
SPIKE = 1.5  # medians: the analyser of nccl-tests calls a sample above it a spike
PLACEMENTS = {"in": "in place", "out": "out of place"}


@dataclass(frozen=True, kw_only=True)
class Conditions(Declared):
    """What holds for all collectives and sizes of a run."""

    placement: str = option(
        "Where results go: in (over the input) or out (into a second buffer).", "in", allowed=PLACEMENTS
    )
    dtype: str = option(f"Type of the elements: {', '.join(TYPES)}.", "fp32", allowed=TYPES)
    op: str = option("Reduction: sum, prod, min, max or average.", "sum", allowed=dict.fromkeys(OPS))
    device: str = option("Where the buffer is: cpu or cuda.", "cpu", allowed=dict.fromkeys(("cpu", "cuda")))
    memory: str = option(MEMORY, "auto", allowed=dict.fromkeys(("auto", "shared", "private")))
    cadence: str = option(CADENCE, "isolated", allowed=dict.fromkeys(("isolated", "streaming")))


@dataclass(frozen=True)
class Case(Conditions):
    """A collective on a full buffer of ``nbytes``, rounded down to whole elements."""

    collective: str
    nbytes: int

    @property
    def count(self) -> int:
        return self.nbytes // TYPES[self.dtype].itemsize

    @property
    def used_bytes(self) -> int:
        return self.count * TYPES[self.dtype].itemsize

    @property
    def reduces(self) -> bool:
        return COLLECTIVES[self.collective].reduces


class CannotRun(ValueError):
    """A contestant cannot run a case; the message says why. All ranks raise it alike."""


class Startable(Protocol):
    """A collective that goes on while something else is done, as a ``Plan`` does."""

    def start(self) -> object: ...

    def advance(self) -> object:
        """Do what can be done without blocking."""

    def wait(self) -> object: ...


@dataclass(frozen=True)
class Prepared:
    """A collective that is prepared on its buffers; ``untimed`` is what comes after each run."""

    run: Callable[[], object]
    free: Callable[[], object] = lambda: None
    untimed: Callable[[], object] = lambda: None
    segment_bytes: int | None = None  # which a plan has chosen
    chosen: str | None = None  # the algorithm that a plan has chosen
    startable: Startable | None = None  # the same, if it need not block


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
        return Prepared(plan, plan.free, segment_bytes=plan.segment_bytes, chosen=plan.algorithm, startable=plan)


@dataclass(frozen=True)
class Samples:
    """What was measured of a contestant."""

    times_s: list[list[float]]  # of each sample, a list per rank
    wrong: int  # elements, in all
    memory: str = "private"  # where its buffers were
    chosen: str | None = None  # the algorithm that a plan took
    delays: Mapping[str, Any] = field(default_factory=dict)  # by an update beside it (beside.py)
    turn_s: float | None = None  # the mean of a turn of all contestants

    def __add__(self, later: Samples) -> Samples:
        times_s = [mine + more for mine, more in zip(self.times_s, later.times_s, strict=True)]
        return replace(later, times_s=times_s, wrong=self.wrong + later.wrong)


def of_job(by_rank: Array, cadence: str) -> Array:
    """The samples of the job from those of its ranks, a row each: of the slowest rank, or means over ranks."""
    found: Array = by_rank.max(axis=0) if cadence == "isolated" else by_rank.mean(axis=0)
    return found


def row_of(
    case: Case, algorithm: str, samples: Samples, *, backend: str, hosts: Sequence[int], segment_bytes: int
) -> Row:
    by_rank_us, ranks = np.array(samples.times_s) * 1e6, sum(hosts)
    times_us = of_job(by_rank_us, case.cadence)
    means_us = by_rank_us.mean(axis=1)
    middle = median(times_us.tolist())
    algbw = case.used_bytes / middle.value * 1e-3
    return Row(
        collective=case.collective,
        algorithm=algorithm,
        backend=backend,
        device=case.device,
        ranks=ranks,
        bytes=case.used_bytes,
        count=case.count,
        dtype=case.dtype,
        op=case.op if case.reduces else "none",
        placement=PLACEMENTS[case.placement],
        segment_bytes=segment_bytes,
        samples=len(times_us),
        min_us=float(times_us.min()),
        p50_us=middle.value,
        ci_low_us=middle.low,
        ci_high_us=middle.high,
        mean_us=float(times_us.mean()),
        p99_us=float(np.quantile(times_us, 0.99)),
        max_us=float(times_us.max()),
        algbw_GBps=algbw,
        busbw_GBps=algbw * BUS_FACTORS[case.collective](ranks),
        wrong=samples.wrong,
        slow_rank=int(np.bincount(by_rank_us.argmax(axis=0)).argmax()),
        model_us=None,
        hosts=list(hosts),
        cadence=case.cadence,
        rank_min_us=float(means_us.min()),
        rank_max_us=float(means_us.max()),
        memory=samples.memory,
        chosen=samples.chosen or algorithm,
        spikes=float((times_us > SPIKE * middle.value).mean()),
        times_us=by_rank_us.tolist(),
        rank_mean_us=float(means_us.mean()),
        turn_us=None if samples.turn_s is None else samples.turn_s * 1e6,
        **samples.delays,
    )
