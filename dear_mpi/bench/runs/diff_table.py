"""What is told of two runs of the benchmark: what differs between them, a table, and what the table cannot tell."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.runs.diff import IN_TITLE, UNSURE, Compared, Diff, middle_us
from dear_mpi.bench.runs.saved import CHOSEN, Point, Run, point_of
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, plural

ONE_LAUNCH = (
    "note: a single run of each side. What differs from launch to launch cannot be seen, and is often more than these "
    "intervals: compare several, as A1.json,A2.json,A3.json B1.json,B2.json,B3.json"
)
UNLIKE_STARTS = (
    "note: points whose samples start by the clock in one run and at a barrier in the other are left out: their times "
    "cannot be compared (bench --start barrier makes them alike)"
)


def show_diff(screen: Console, diff: Diff) -> None:
    screen.print(f"A: {names(diff.a)}\nB: {names(diff.b)}", markup=False, soft_wrap=True)
    if diff.differs:
        heads: dict[str, Callable[[tuple[str, tuple[str, str]]], str]] = {
            "what differs": lambda each: each[0],
            "A": lambda each: each[1][0],
            "B": lambda each: each[1][1],
        }
        screen.print(table([diff.differs.items()], heads, left=heads))
    for title, points in groupby(diff.points, lambda each: titled(each.a[0])):
        screen.print(table_of(list(points), title))
    for letter, rows in zip("AB", diff.alone, strict=True):
        for line in alone(rows):
            screen.print(f"only in {letter}: {line}", markup=False, soft_wrap=True)
    if unlike_starts(diff):
        screen.print(UNLIKE_STARTS, markup=False, soft_wrap=True)
    for line in (summary(diff), *detectable(diff)):
        screen.print(line, markup=False, soft_wrap=True)
    if not diff.sees_launches:
        screen.print(ONE_LAUNCH, markup=False, soft_wrap=True)


def names(runs: Sequence[Run]) -> str:
    return ", ".join(run.name for run in runs)


def titled(row: Row) -> str:
    """What a table is about: all that is chosen, but the algorithm and the size.

    It has no op where nothing is reduced.
    """
    collective, ranks, *others, start = point_of(row)[:IN_TITLE]
    told = (each for each in others if each != "none")
    return ", ".join([collective, plural(ranks, "rank"), *told, f"start {start}"])


def table_of(points: Sequence[Compared], title: str) -> Table:
    columns: dict[str, Callable[[Compared], str]] = {
        "bytes": lambda each: format_bytes(each.a[0].bytes),
        "algorithm": lambda each: each.a[0].algorithm,
        "memory": lambda each: each.a[0].memory,
        "segment": lambda each: format_bytes(each.a[0].segment_bytes),
        "A (us)": lambda each: f"{middle_us(each.a):.1f}",
        "B (us)": lambda each: f"{middle_us(each.b):.1f}",
        "B / A": lambda each: f"{each.estimate.ratio.value:.2f}",
        "95 % interval": interval,
        "verdict": lambda each: each.verdict,
    }
    for head in ("memory", "segment"):
        if len(set(map(columns[head], points))) == 1:
            del columns[head]
    lines = (list(group) for _, group in groupby(points, lambda each: each.a[0].bytes))
    return table(lines, columns, left=("algorithm", "memory", "verdict"), title=title)


def interval(point: Compared) -> str:
    ratio = point.estimate.ratio
    return f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.high < 100 else "unknown"


def alone(rows: Sequence[Row]) -> Iterator[str]:
    """The points that one side lacks: the sizes of each algorithm on a line."""
    for title, same in groupby(rows, lambda row: titled(row)):
        sizes: dict[str, list[str]] = {}
        for row in same:
            sizes.setdefault(row.algorithm, []).append(format_bytes(row.bytes))
        yield f"{title}: " + "; ".join(f"{name} of {', '.join(each)}" for name, each in sizes.items())


def unlike_starts(diff: Diff) -> bool:
    """Whether a point is in one run alone only because its samples start otherwise."""
    sides = [{point_of(replace(row, start="")) for row in rows} for rows in diff.alone]
    return not sides[0].isdisjoint(sides[1])


def summary(diff: Diff) -> str:
    counts = dict.fromkeys(("slower", "faster", f"within {diff.at_least * 100:g}%", UNSURE), 0)
    for each in diff.points:
        counts[each.verdict] += 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    most = f"slower: B takes over {diff.at_least * 100:g}% longer than A"
    return (
        f"{plural(len(diff.points), 'point')}: {said}. {most}; where no point does, one is said to in at most 5% of "
        f"comparisons. A and B: {'geometric means of the medians of launches' if diff.sees_launches else 'medians'}."
    )


def detectable(diff: Diff) -> Iterator[str]:
    """The slow-downs that could have been found where it cannot tell."""
    if diff.unsure:
        ends = [of(diff.unsure, key=lambda each: each.detectable) for of in (min, max)]
        said = [f"{slow_down(each)} ({each.a[0].algorithm}, {format_bytes(each.a[0].bytes)})" for each in ends]
        found = " to ".join(dict.fromkeys(said))
        yield f"Smallest detectable slow-down where it cannot tell: {found}. Take more samples to detect smaller ones."
    if diff.exit_code == 3:
        yield "It cannot tell at any point: exit code 3."


def slow_down(point: Compared) -> str:
    """
    >>> from types import SimpleNamespace
    >>> [slow_down(SimpleNamespace(detectable=ratio)) for ratio in (1.314, 250.0, math.inf)]
    ['1.31x', '250x', 'none (too few samples)']
    """
    return "none (too few samples)" if point.detectable == math.inf else f"{point.detectable:.3g}x"


def report_of(diff: Diff) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "a": [run.name for run in diff.a],
        "b": [run.name for run in diff.b],
        "at_least": diff.at_least,
        "differs": {name: {"a": a, "b": b} for name, (a, b) in diff.differs.items()},
        "slower": len(diff.slower),
        "exit_code": diff.exit_code,
        "points": [point_report(each) for each in diff.points],
        "only_in": {side: [chosen(point_of(row)) for row in rows] for side, rows in zip("ab", diff.alone, strict=True)},
    }


def point_report(each: Compared) -> dict[str, Any]:
    ratio = each.estimate.ratio
    return {
        **chosen(point_of(each.a[0])),
        "a_us": middle_us(each.a),
        "b_us": middle_us(each.b),
        "a_launches": len(each.a),
        "b_launches": len(each.b),
        "ratio": ratio.value,
        "ci_low": ratio.low,
        "ci_high": ratio.high,
        "p_slower": each.slower,
        "p_faster": each.faster,
        "verdict": each.verdict,
        "detectable": each.detectable if each.detectable < math.inf else None,
    }


def chosen(point: Point) -> dict[str, Any]:
    return dict(zip(CHOSEN, point, strict=True))
