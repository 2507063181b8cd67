"""Split a collective's time by step: waiting for peers, transfer, combining, copying.

``collectives/plans/steps.py`` defines these kinds. A rank's calls are sequential, so these times, and the time outside
of steps, add up to the collective's time on it. Clocks are compared before and after (``ranks/clock.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dear_mpi.bench.case import Case
from dear_mpi.bench.overlap import Subject, subject
from dear_mpi.collectives.plans.notes import Noted, Notes
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.steps import KINDS, Ranks, StepSpan, fold, spans_of, starts_of
from dear_mpi.ranks.clock import Aligned, CommonClock
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural

WARM_UP, RUNS = 2, (5, 20)  # uncounted runs; the fewest and the most counted runs


@dataclass(frozen=True)
class Cell:
    """A rank in a step: means over runs, in us."""

    rank: int
    step: int
    waiting_us: float
    transfer_us: float
    combining_us: float
    copying_us: float
    waits_for: int | None  # the peer with the largest part of the waits

    @property
    def total_us(self) -> float:
        return self.waiting_us + self.transfer_us + self.combining_us + self.copying_us


@dataclass(frozen=True)
class Steps(Subject):
    """The steps of one of our plans."""

    segment_bytes: int
    runs: int  # counted runs: those with a length in the middle half
    time_us: list[float]  # of the recorded collective on each rank; means, like the following fields
    plain_us: list[float]  # not recorded
    outside_us: list[float]  # outside of steps: copies before and after, Python between calls
    clocks_us: float  # the possible error of times on different hosts; 0 on one host
    cells: list[Cell]
    noted: Ranks = field(repr=False)  # the run of median length

    @cached_property
    def spans(self) -> list[list[StepSpan]]:
        """Return each rank's spans in the run of median length."""
        starts = starts_of(self.noted)
        return [list(spans_of(rank, noted, starts)) for rank, noted in self.noted.items()]

    def as_row(self) -> dict[str, Any]:
        """Return a row of the report: all but the spans."""
        row = asdict(replace(self, noted={}))
        del row["noted"]
        return row

    @property
    def recording(self) -> float:
        """Return the slow-down by recording, as a share of the collective's time."""
        return float(np.mean(self.time_us) / np.mean(self.plain_us)) - 1


def steps_of(name: str, case: Case, plan: Plan, world: World, seconds: float) -> list[Steps]:
    """Collective: record a plan as often as the seconds allow; none if it has no steps.

    Fill its buffer with values that combining does not change, such as zeros. Plain and recorded runs take turns, each
    after a barrier.
    """
    if any(part.step is None for part in plan.run.parts):  # the MPI library's
        return []
    watch = Watch(plan, world)
    watch.turns(WARM_UP)
    turn_s = max(world.transport.gather_values(sum(watch.last_s)))
    with watch.common_clock():
        runs = watch.turns(int(min(max(seconds / turn_s, RUNS[0]), RUNS[1])))
    return [watch.summary(subject(name, case, world.transport), runs)]


class Run(NamedTuple):
    """A recorded run on this rank."""

    noted: Noted
    begin_s: float
    end_s: float
    plain_s: float  # of the preceding plain run


class Watch:
    """Collective: runs a plan, recorded and plain."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.transport = plan, world.transport
        self.aligned, self.last_s = Aligned(), (0.0, 0.0)

    @contextmanager
    def common_clock(self) -> Iterator[None]:
        """Compare clocks before and after."""
        clock = CommonClock(self.transport)
        yield
        clock.look()
        self.aligned = clock.aligned()

    def turns(self, count: int) -> list[Run]:
        found = []
        for _ in range(count):
            begin_s, end_s = self.timed()
            found.append(self.record(end_s - begin_s))
            self.last_s = end_s - begin_s, found[-1].end_s - found[-1].begin_s
        return found

    def record(self, plain_s: float = 0.0) -> Run:
        self.plan.notes = notes = Notes()
        try:
            begin_s, end_s = self.timed()
        finally:
            self.plan.notes = None
        return Run(notes.runs[-1], begin_s, end_s, plain_s)

    def timed(self) -> tuple[float, float]:
        self.transport.barrier()
        begin_s = perf_counter()
        self.plan()
        return begin_s, perf_counter()

    def summary(self, facts: Mapping[str, Any], runs: Sequence[Run]) -> Steps:
        """Return the summary of all ranks' runs, equal on all ranks. ``facts`` identify the candidate."""
        transport = self.transport
        by_rank = self.gathered(runs)
        spans = [self.spans_of(ranks) for ranks in by_rank]
        seconds = np.array(transport.gather_values([run.end_s - run.begin_s for run in runs]))
        order = seconds.max(axis=0).argsort()
        middle = order[len(runs) // 4 : len(runs) - len(runs) // 4].tolist()
        kept = [spans[number] for number in middle]
        mine = cells_of(transport.rank, kept), float(np.mean([runs[number].plain_s for number in middle]))
        cells, plain_s = zip(*transport.gather_values(mine), strict=True)
        time_us = seconds[:, middle].mean(axis=1) * 1e6
        inside_us = [sum(cell.total_us for cell in found) for found in cells]
        return Steps(
            **facts,
            segment_bytes=self.plan.segment_bytes,
            runs=len(middle),
            time_us=time_us.tolist(),
            plain_us=[each * 1e6 for each in plain_s],
            outside_us=(time_us - inside_us).tolist(),
            clocks_us=max(transport.gather_values(self.aligned.uncertainty_s(runs[-1].end_s))) * 1e6,
            cells=[cell for found in cells for cell in found],
            noted=by_rank[order[len(runs) // 2]],
        )

    def gathered(self, runs: Sequence[Run]) -> list[dict[int, Noted]]:
        """Return each run's spans of all ranks, by rank, on rank 0's clock."""
        offset_s = [self.aligned.offset_s(run.begin_s) for run in runs]
        mine = [run.noted.earlier(ahead_s) for run, ahead_s in zip(runs, offset_s, strict=True)]
        return [dict(enumerate(each)) for each in zip(*self.transport.gather_values(mine), strict=True)]

    def spans_of(self, ranks: Ranks) -> list[StepSpan]:
        return list(spans_of(self.transport.rank, ranks[self.transport.rank], starts_of(ranks)))


def cells_of(rank: int, runs: Sequence[Sequence[StepSpan]]) -> list[Cell]:
    """Return a rank's steps, in means over runs."""
    found = []
    for step, spans in grouped((span for run in runs for span in run), lambda span: span.step).items():
        assert step is not None, "it is a message's"
        sums_s, waits_for = fold((span.kind, span.peer, span.seconds) for span in spans)
        parts = {f"{kind}_us": sums_s[kind] * 1e6 / len(runs) for kind in KINDS}
        found.append(Cell(rank=rank, step=step, waits_for=waits_for, **parts))
    return sorted(found, key=lambda cell: cell.step)


TOLD = 0.1  # share of a collective's time: shorter waits are not traced


@dataclass(frozen=True)
class Line:
    """A step, in the mean over ranks, in us; its last column names the slowest rank."""

    name: str
    parts_us: Sequence[float | None]
    total_us: float
    slowest: str = ""


def show_steps(screen: Console, found: Sequence[Steps], *, asked: bool) -> None:
    if asked and not found:
        screen.print("No steps: none of these plans sends messages.")
    for each in found:
        screen.print(table_of(each))
        for text in words_of(each):
            screen.print(text, soft_wrap=True, markup=False)


def table_of(steps: Steps) -> Table:
    columns: dict[str, Callable[[Line], str]] = {"step": lambda line: line.name}
    for place, kind in enumerate(KINDS):
        columns[kind] = lambda line, place=place: in_us(line.parts_us[place])  # type: ignore[misc]
    columns |= {"all": lambda line: in_us(line.total_us), "slowest rank": lambda line: line.slowest}
    return table(
        lines_of(steps),
        columns,
        title=f"where the time goes: {steps.algorithm}, {format_bytes(steps.bytes)}, {steps.kind}",
        caption=f"us: means over ranks and over {plural(steps.runs, 'run')}, those of the middle half by length",
    )


def lines_of(steps: Steps) -> list[list[Line]]:
    """Return a line per step, one for the time outside of steps, and their sum: the collective's time."""
    by_step = sorted(steps.cells, key=lambda cell: (cell.step, cell.rank))
    found = [line_of(str(step), list(cells), steps.ranks) for step, cells in groupby(by_step, lambda cell: cell.step)]
    outside = Line("outside", [None] * len(KINDS), fmean(steps.outside_us), named(steps.outside_us))
    sums = [sum(line.parts_us[place] or 0.0 for line in found) for place in range(len(KINDS))]
    return [found, [outside], [Line("all", sums, fmean(steps.time_us), named(steps.time_us))]]


def line_of(name: str, cells: Sequence[Cell], ranks: int) -> Line:
    slowest = max(cells, key=lambda cell: cell.total_us)
    parts = [sum(getattr(cell, f"{kind}_us") for cell in cells) / ranks for kind in KINDS]
    return Line(name, parts, sum(parts), f"{slowest.rank} ({in_us(slowest.total_us)})")


def named(by_rank_us: Sequence[float]) -> str:
    """Name the slowest rank, with its time."""
    slowest = max(range(len(by_rank_us)), key=by_rank_us.__getitem__)
    return f"{slowest} ({in_us(by_rank_us[slowest])})"


def in_us(value: float | None) -> str:
    return "" if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def words_of(steps: Steps) -> list[str]:
    """Describe the slowest step and its rank, the cause of the longest wait, the cost of recording, and the clocks."""
    said = []
    if steps.cells:
        slow = max(steps.cells, key=lambda cell: cell.total_us)
        kind = max(KINDS, key=lambda kind: float(getattr(slow, f"{kind}_us")))
        what = f"{in_us(getattr(slow, f'{kind}_us'))} us of it {kind}"
        said.append(f"Slowest: step {slow.step} on rank {slow.rank}, {in_us(slow.total_us)} us, {what}.")
    chain = traced(steps.spans)
    if chain and chain[0][1].seconds >= TOLD * 1e-6 * fmean(steps.time_us):
        waits = [
            f"rank {rank} in step {span.step} for rank {span.peer} ({in_us(span.seconds * 1e6)} us)"
            for rank, span in chain
        ]
        late = f"The longest wait of the median run leads back to rank {chain[-1][1].peer}"
        said.append(f"{late}: {', as '.join(waits)}.")
    plain = f"{in_us(fmean(steps.plain_us))} us without"
    clocks = f" Clocks of hosts agree within {in_us(steps.clocks_us)} us." if steps.clocks_us else ""
    said.append(f"Recording: {in_us(fmean(steps.time_us))} us with it, {plain} ({steps.recording:+.0%}).{clocks}")
    return said


def traced(spans: Sequence[Sequence[StepSpan]]) -> list[tuple[int, StepSpan]]:
    """Trace a run's longest wait from its rank to its cause.

    The trace continues while the peer waited at least half as long at that time. The last peer was late, or slow to
    send.
    """
    waits = [(rank, span) for rank, mine in enumerate(spans) for span in mine if span.kind == "waiting"]
    chain = [max(waits, key=lambda wait: wait[1].seconds)] if waits else []
    while chain:
        last = chain[-1][1]
        common_s = {
            wait: min(last.end_s, wait[1].end_s) - max(last.begin_s, wait[1].begin_s)
            for wait in waits
            if wait[0] == last.peer and wait[1].end_s < last.end_s
        }
        if not common_s or 2 * max(common_s.values()) < last.seconds:
            return chain
        chain.append(max(common_s, key=common_s.__getitem__))
    return chain
