"""The steps of a collective as a table, and in words: where it is slow, and whose lateness that is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from rich.console import Console
from rich.table import Table

from dear_mpi.bench.inside.steps import Cell, Steps
from dear_mpi.collectives.plans.steps import KINDS, StepSpan
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, plural

TOLD = 0.1  # of the time of a collective: shorter waits are not traced


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
    """Of each step; of what is outside of them; of all, whose sum is the time of the collective."""
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
    """The slowest rank, and its time."""
    slowest = max(range(len(by_rank_us)), key=by_rank_us.__getitem__)
    return f"{slowest} ({in_us(by_rank_us[slowest])})"


def in_us(value: float | None) -> str:
    return "" if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def words_of(steps: Steps) -> list[str]:
    """Which step is slowest, on which rank; whose lateness the longest wait is; what recording costs; the clocks."""
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
    """The longest wait of a run, with its rank, and where it comes from: meanwhile the peer waited itself, for at least
    half as long, and so on. The peer of the last one was late itself, or slow to send."""
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
