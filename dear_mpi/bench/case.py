"""Define operations, cases (an operation at one size and setting), a candidate's samples, and their row.

Extras add operations without programs. Source: nccl-tests (busbw).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.program import COLLECTIVES, Contract
from dear_mpi.collectives.program.user_file import WithExtras
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.reporting.declared import Declared, option
from dear_mpi.reporting.stats import median

WINDOW_BYTES, FEWEST_IN_A_ROW = 64 << 20, 4  # large messages: at most these bytes at once, at least these messages


@dataclass(frozen=True)
class Operation:
    size: str  # what has S bytes
    busbw: str = "1"  # busbw / algbw: a number, perhaps times (n-1)/n on n ranks
    contract: Contract | None = None  # of ranks; None: whole messages, or nothing
    # Without a contract: the rank whose message a rank ends with.
    source: Callable[[int, int], int | None] = lambda rank, ranks: None
    pair: bool = False  # only the first and the last rank communicate, out of place
    window: int = 1  # most messages to a rank in one run, each to its place
    parts: int = 1  # repetitions of the timed part, per message of the window
    calls: Callable[[Setup, Any], Prepared] | None = None  # prepares a form of MPI's calls, without a program

    def factor(self, ranks: int) -> float:
        times = float(self.busbw.partition("(")[0] or 1)
        return times * ((ranks - 1) / ranks) if "n" in self.busbw else times

    @property
    def sized(self) -> bool:
        return self.busbw != "0"

    @property
    def reduces(self) -> bool:
        return self.contract is not None and self.contract.reduces

    @property
    def addressed(self) -> bool:
        """Whether all chunks must have one length."""
        return self.contract is not None and self.contract.addressed

    @property
    def is_messages(self) -> bool:
        return self.sized and self.contract is None


OPERATIONS = WithExtras(
    {
        "all_reduce": Operation("the buffer of each rank", "2(n-1)/n", COLLECTIVES["all_reduce"]),
        "reduce_scatter": Operation("the buffer that each rank brings", "(n-1)/n", COLLECTIVES["reduce_scatter"]),
        "all_gather": Operation("the buffer that each rank ends with", "(n-1)/n", COLLECTIVES["all_gather"]),
        "broadcast": Operation("the buffer of each rank", "1", COLLECTIVES["broadcast"]),
        "reduce": Operation("the buffer of each rank", "1", COLLECTIVES["reduce"]),
        "all_to_all": Operation("the buffer of each rank, with a part per rank", "(n-1)/n", COLLECTIVES["all_to_all"]),
    },
    "operations",
)

MEMORY = "Memory of our buffers on the CPU: shared (by the ranks of a host), private, or auto (by algorithm)."
START = (
    "How ranks begin an isolated call together: clock (at an agreed moment of a common clock), barrier, or auto: "
    "barrier where there are more ranks than cores, or no MPI, else clock. If ranks are often late for the clock, the "
    "whole run starts at barriers."
)
CADENCE = (
    "isolated: a sample is one call, from its start to its end on the slowest rank. streaming: a sample is the mean "
    "over calls in a row and over ranks, and barriers between calls are not timed, as in the OSU benchmarks."
)
PLACEMENTS = {"in": "in place", "out": "out of place"}


@dataclass(frozen=True, kw_only=True)
class Conditions(Declared):
    device: str = option("Where the buffer is: cpu or cuda.", "cpu", allowed=dict.fromkeys(("cpu", "cuda")))
    memory: str = option(MEMORY, "auto", allowed=dict.fromkeys(("auto", "shared", "private")))
    cadence: str = option(CADENCE, "isolated", allowed=dict.fromkeys(("isolated", "streaming")))
    start: str = option(START, "auto", allowed=dict.fromkeys(("auto", "clock", "barrier")))


@dataclass(frozen=True)
class Case(Conditions):
    """An operation on a full buffer of ``nbytes``, in whole elements."""

    collective: str
    nbytes: int
    placement: str = "in"
    dtype: str = "fp32"
    op: str = "sum"

    @classmethod
    def of(cls, collective: str, nbytes: int, ranks: int, conditions: Mapping[str, Any]) -> Case:
        """Round the size to whole elements (of each rank, if chunks must be equal); drop settings without effect."""
        operation, settled = OPERATIONS[collective], dict[str, Any]()
        if not operation.reduces:
            settled["op"] = "sum"
        if operation.pair:
            settled["placement"] = "out"
        if not operation.sized:
            return cls(collective, 0, **{**conditions, **settled, "placement": "in", "dtype": "fp32"})
        grain = TYPES[conditions["dtype"]].itemsize * (ranks if operation.addressed else 1)
        return cls(collective, max(nbytes // grain, 1) * grain, **{**conditions, **settled})

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.collective]

    @property
    def count(self) -> int:
        return self.nbytes // TYPES[self.dtype].itemsize

    @property
    def window(self) -> int:
        """Return the number of messages to a rank in one run."""
        return min(self.operation.window, max(WINDOW_BYTES // max(self.nbytes, 1), FEWEST_IN_A_ROW))

    @property
    def reduces(self) -> bool:
        return self.operation.reduces

    @property
    def facts(self) -> dict[str, Any]:
        op = self.op if self.reduces else "none"
        return {"dtype": self.dtype, "op": op, "placement": PLACEMENTS[self.placement]}


class CannotRun(ValueError):
    """A candidate cannot run a case, on all ranks."""


@dataclass(frozen=True)
class Prepared:
    run: Callable[[], object]
    free: Callable[[], object] = lambda: None
    untimed: Callable[[], object] = lambda: None  # after each run
    segment_bytes: int | None = None
    chosen: str | None = None  # by a plan
    startable: Any = None  # if it need not block: a plan, or a function that starts an MPI call and returns its request


@dataclass(frozen=True)
class Setup:
    case: Case
    x: Array
    out: Array | None
    transport: Transport
    segment_bytes: int

    def plan(self, algorithm: str) -> Plan:
        case, op = self.case, self.case.op if self.case.reduces else "sum"
        segment = self.segment_bytes if rules_of(algorithm) is None else None  # the rules of auto contain segments
        return make_plan(
            case.collective, self.x, self.transport, out=self.out, algorithm=algorithm, op=op, segment_bytes=segment
        )

    def prepared(self, algorithm: str) -> Prepared:
        plan = self.plan(algorithm)
        return Prepared(plan, plan.free, segment_bytes=plan.segment_bytes, chosen=plan.algorithm, startable=plan)


@dataclass(frozen=True)
class Samples:
    times_s: list[list[float]]  # by rank; of a pair only the first
    late: int = 0  # dropped: a rank was late
    memory: str = "private"
    chosen: str | None = None  # by a plan
    start: str = "barrier"
    wrong: int = 0  # wrong elements, over all ranks and calls

    @property
    def counted(self) -> int:
        return len(self.times_s[0])

    def __add__(self, later: Samples) -> Samples:
        times_s = [mine + more for mine, more in zip(self.times_s, later.times_s, strict=True)]
        return replace(later.after(self), times_s=times_s, late=self.late + later.late)

    def after(self, earlier: Samples) -> Samples:
        """Add the wrong results of earlier, uncounted calls."""
        return replace(self, wrong=earlier.wrong + self.wrong)


def of_job(by_rank: Array | Sequence[Sequence[float]], cadence: str) -> Array:
    """Reduce ranks (rows) to the slowest one, or to means (streaming)."""
    found: Array = np.max(by_rank, axis=0) if cadence == "isolated" else np.mean(by_rank, axis=0)
    return found


def job_us(row: Row) -> list[float]:
    """In the order of turns; empty without ``times_us``."""
    return [] if row.times_us is None else of_job(row.times_us, row.cadence).tolist()


def row_of(
    case: Case, algorithm: str, samples: Samples, *, backend: str, hosts: Sequence[int], segment_bytes: int
) -> Row:
    by_rank_us, ranks = np.array(samples.times_s) * 1e6, sum(hosts)
    times_us, means_us = of_job(by_rank_us, case.cadence), by_rank_us.mean(axis=1)
    middle = median(times_us.tolist())
    algbw = case.nbytes / middle.value * 1e-3
    return Row(
        collective=case.collective,
        algorithm=algorithm,
        backend=backend,
        device=case.device,
        ranks=ranks,
        bytes=case.nbytes,
        count=case.count,
        **case.facts,
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
        busbw_GBps=algbw * case.operation.factor(ranks),
        wrong=samples.wrong,
        slow_rank=int(np.bincount(by_rank_us.argmax(axis=0)).argmax()),
        model_us=None,
        hosts=list(hosts),
        cadence=case.cadence,
        rank_min_us=float(means_us.min()),
        rank_max_us=float(means_us.max()),
        memory=samples.memory,
        chosen=samples.chosen or algorithm,
        times_us=by_rank_us.tolist(),
        rank_mean_us=float(means_us.mean()),
        start=samples.start,
        late=samples.late,
    )
