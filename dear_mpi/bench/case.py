"""What is measured: one collective at one size; what a contestant makes of it, its samples, and the row of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.kernels.dtypes import DTYPES
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
PLACEMENTS = {"in": "in place", "out": "out of place"}
MOST, MOST_US = 10**15, 86400e6  # in a row that can be measured; a day
Size = Annotated[int, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Microseconds = Annotated[float, Meta(ge=0, le=MOST_US)]
Measured = Annotated[float, Meta(ge=1e-6, le=MOST_US)]  # us
Delay = Annotated[float, Meta(ge=-MOST_US, le=MOST_US)]  # us


@dataclass(frozen=True, kw_only=True)
class Conditions(Declared):
    """What holds for all collectives and sizes of a run."""

    placement: str = option(
        "Where results go: in (over the input) or out (into a second buffer).", "in", allowed=PLACEMENTS
    )
    dtype: str = option(f"Type of the elements: {', '.join(DTYPES)}.", "fp32", allowed=DTYPES)
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
        return self.nbytes // DTYPES[self.dtype].itemsize

    @property
    def used_bytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def reduces(self) -> bool:
        return COLLECTIVES[self.collective].reduces


class CannotRun(ValueError):
    """A contestant cannot run a case; the message says why. All ranks raise it alike."""


@dataclass(frozen=True)
class Prepared:
    """A collective that is prepared on its buffers; ``untimed`` is what comes after each run."""

    run: Callable[[], object]
    free: Callable[[], object] = lambda: None
    untimed: Callable[[], object] = lambda: None
    segment_bytes: int | None = None  # which a plan has chosen
    chosen: str | None = None  # the algorithm that a plan has chosen


@dataclass(frozen=True)
class Samples:
    """What was measured of a contestant."""

    times_s: list[list[float]]  # of each sample, a list per rank
    wrong: int  # elements, in all
    memory: str = "private"  # where its buffers were
    chosen: str | None = None  # the algorithm that a plan took
    delays: Mapping[str, Any] = field(default_factory=dict)  # by an update beside it (beside.py)

    def __add__(self, later: Samples) -> Samples:
        times_s = [mine + more for mine, more in zip(self.times_s, later.times_s, strict=True)]
        return replace(later, times_s=times_s, wrong=self.wrong + later.wrong)


@dataclass(frozen=True)
class Row:
    """One contestant at one size."""

    collective: str
    algorithm: str
    backend: str
    device: str
    ranks: Count
    bytes: Size
    count: Size
    dtype: str
    op: str
    placement: str
    segment_bytes: Count
    samples: int
    min_us: float
    p50_us: Measured
    ci_low_us: float
    ci_high_us: float
    mean_us: Measured
    p99_us: float
    max_us: float
    algbw_GBps: float
    busbw_GBps: float
    wrong: int  # elements that differed from the exact result, over all ranks and calls
    slow_rank: int  # the one that was most often the slowest
    model_us: float | None  # what fit.py predicts, where it can
    hosts: list[int]  # ranks on each host
    cadence: str  # isolated: a sample is a call on its slowest rank; streaming: calls in a row, the mean over ranks
    rank_min_us: float  # of the ranks' means, the smallest
    rank_max_us: float
    memory: str  # where the buffers were: shared, private or device
    chosen: str  # the algorithm that was carried out, which may be another one than ``auto``
    peer: str = ""  # the fastest call of an MPI library at this size, else the first contestant
    over_peer: float = 1.0  # time / its time
    delay_us: Delay | None = None  # by which an update of as many bytes that runs beside it delays it (beside.py)
    update_us: Microseconds | None = None  # of that update alone
    update_beside_us: Microseconds | None = None  # and beside it


def row_of(
    case: Case, algorithm: str, samples: Samples, *, backend: str, hosts: Sequence[int], segment_bytes: int
) -> Row:
    by_rank_us, ranks = np.array(samples.times_s) * 1e6, sum(hosts)
    times_us = by_rank_us.max(axis=0) if case.cadence == "isolated" else by_rank_us.mean(axis=0)
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
        **samples.delays,
    )
