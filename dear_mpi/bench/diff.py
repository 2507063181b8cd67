"""Test whether one benchmark run is slower than another, at each point of both.

The test compares medians on a logarithmic scale: is the second run slower by more than a share, ``at_least``? A smaller
slow-down never counts, however certain.

The standard error of a median comes from

- launches, if a side has several: their medians also scatter by launch (cores and memory of the ranks), usually more
  than samples within a launch. Student's test, with the common spread of both sides.
- otherwise the intervals of the two medians: half of each is 1.96 standard errors. Similar neighbouring samples count
  less (``worth_one``), if the file has samples (bench --raw). This ignores differences between launches.

All points are tested at once. Holm's adjustment (``dear_mpi/reporting/stats.py``) bounds the chance of any slower point
between equal runs at 5 %.

Source for several launches: Hunold and Carpen-Amarie, MPI Benchmarking Revisited (arXiv 1505.07734).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, variance
from typing import Any

from rich.console import Console
from rich.table import Table

from dear_mpi.bench.case import job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.saved import CHOSEN, Point, Run, check_comparable, heads, point_of
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, holm, quantile, tail, worth_one
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural

IN_TITLE = CHOSEN.index("algorithm")  # the columns of a point before the algorithm
CHANCE = 0.05  # that any point of equal runs is reported as slower
LEAST_US = 1e-6
UNSURE = "cannot tell"


@dataclass(frozen=True)
class Estimate:
    """The logarithm of B / A, its standard error and the degrees of freedom."""

    log_ratio: float
    error: float
    freedom: int

    def chance(self, least: float, sign: int = 1) -> float:
        """Return the p-value of the ratio if B is at most ``least`` slower (faster, if ``sign`` is -1)."""
        over = sign * self.log_ratio - math.log1p(least)
        if self.error == 0:
            return float(over <= 0)
        return tail(over / self.error, self.freedom)

    def least_seen(self, least: float, tests: int) -> float:
        """Return the least B / A that counts as slower at this point, if no other test found anything."""
        reach = quantile(CHANCE / tests, self.freedom) * self.error if self.error else 0.0
        return math.exp(min(math.log1p(least) + reach, 700)) if reach < math.inf else math.inf

    @property
    def ratio(self) -> Median:
        """Return B / A with its 95 % interval."""
        reach = quantile((1 - 0.95) / 2, self.freedom) * self.error
        return Median(*(math.exp(min(self.log_ratio + each, 700)) for each in (0.0, -reach, reach)))


@dataclass(frozen=True)
class Compared:
    """A point of both runs: its rows in each side's launches, and the test's result."""

    a: Sequence[Row]
    b: Sequence[Row]
    estimate: Estimate
    slower: float  # adjusted p-values
    faster: float
    at_least: float
    detectable: float  # the least B / A that would be reported as slower

    @property
    def verdict(self) -> str:
        ratio, most = self.estimate.ratio, 1 + self.at_least
        if self.slower <= CHANCE:
            return "slower"
        if self.faster <= CHANCE:
            return "faster"
        return f"within {self.at_least * 100:g}%" if 1 / most <= ratio.low and ratio.high <= most else UNSURE


@dataclass(frozen=True)
class Diff:
    """Two sides, each of one or more launches, and the points that only one side has (``alone``)."""

    a: Sequence[Run]
    b: Sequence[Run]
    at_least: float
    points: list[Compared]
    alone: tuple[list[Row], list[Row]]
    differs: dict[str, tuple[str, str]]  # differing facts about where and how the files were made

    @property
    def slower(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == "slower"]

    @property
    def unsure(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == UNSURE]

    @property
    def exit_code(self) -> int:
        """Return 1 if any point is slower, 3 if no point could be tested."""
        return 1 if self.slower else 3 * (len(self.unsure) == len(self.points))

    @property
    def sees_launches(self) -> bool:
        return len(self.a) + len(self.b) > 2


def compare_runs(a: Sequence[Run], b: Sequence[Run], at_least: float) -> Diff:
    """Test whether ``b`` is slower than ``a`` by at least this share. Raises a ValueError for incomparable runs."""
    for other in (*a[1:], *b):
        check_comparable(a[0], other)
    sides = launches(a), launches(b)
    rows = [(mine, sides[1][point]) for point, mine in sides[0].items() if point in sides[1]]
    found = [estimate(*both) for both in rows]
    chances = [holm([each.chance(at_least, sign) for each in found]) for sign in (1, -1)]
    points = [
        Compared(a_rows, b_rows, each, slower, faster, at_least, each.least_seen(at_least, len(rows)))
        for (a_rows, b_rows), each, slower, faster in zip(rows, found, *chances, strict=True)
    ]
    alone = [[each[0] for point, each in side.items() if point not in other] for side, other in (sides, sides[::-1])]
    texts = heads(a), heads(b)
    both = [name for name in texts[0] if name in texts[1]]
    told = texts[0] | texts[1] if all(run.provenance for run in (*a, *b)) else both
    pairs = {name: (texts[0].get(name, "-"), texts[1].get(name, "-")) for name in told}
    differs = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return Diff(a, b, at_least, points, (alone[0], alone[1]), differs)


def launches(runs: Sequence[Run]) -> dict[Point, list[Row]]:
    """Group the launches' rows by point, sorted by size within equal choices."""
    found = grouped((row for run in runs for row in run.points.values()), point_of)
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(point[:IN_TITLE] for point in found))}
    return dict(sorted(found.items(), key=lambda each: (kinds[each[0][:IN_TITLE]], each[1][0].bytes)))


def middle_us(rows: Sequence[Row]) -> float:
    return math.exp(fmean(math.log(row.p50_us) for row in rows))


def estimate(a: Sequence[Row], b: Sequence[Row]) -> Estimate:
    """Estimate a point's B / A from the launches of each side."""
    log_ratio, told = math.log(middle_us(b) / middle_us(a)), [[within(row) for row in side] for side in (a, b)]
    inside = math.hypot(*(error / len(side) for side in told for error, _ in side))
    freedom = len(a) + len(b) - 2
    if freedom == 0:
        return Estimate(log_ratio, inside, max(1, int(min(worth for side in told for _, worth in side)) - 1))
    logs = [[math.log(row.p50_us) for row in side] for side in (a, b)]
    squares = sum(variance(side) * (len(side) - 1) for side in logs if len(side) > 1)
    between = math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))
    return Estimate(log_ratio, max(between, inside), freedom)


def within(row: Row) -> tuple[float, float]:
    """Return the standard error of a median's logarithm, and the number of independent samples.

    It is infinite for fewer than ``FEWEST_SAMPLES`` samples.
    """
    if row.samples < FEWEST_SAMPLES:
        return math.inf, row.samples
    error = math.log(max(row.ci_high_us, row.p50_us) / max(min(row.ci_low_us, row.p50_us), LEAST_US)) / (2 * Z)
    if row.times_us is None:
        return error, row.samples
    alike = worth_one(job_us(row))
    return error * math.sqrt(alike), row.samples / alike


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
    """Return a table's title: all choices but the algorithm and the size."""
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
    """List the points that only one side has: an algorithm's sizes on a line."""
    for title, same in groupby(rows, lambda row: titled(row)):
        sizes: dict[str, list[str]] = {}
        for row in same:
            sizes.setdefault(row.algorithm, []).append(format_bytes(row.bytes))
        yield f"{title}: " + "; ".join(f"{name} of {', '.join(each)}" for name, each in sizes.items())


def unlike_starts(diff: Diff) -> bool:
    """Return whether a point is missing in one run only because its samples start differently."""
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
    """Name the slow-downs that were detectable at undecided points."""
    if diff.unsure:
        ends = [of(diff.unsure, key=lambda each: each.detectable) for of in (min, max)]
        said = [f"{slow_down(each)} ({each.a[0].algorithm}, {format_bytes(each.a[0].bytes)})" for each in ends]
        found = " to ".join(dict.fromkeys(said))
        yield f"Smallest detectable slow-down where it cannot tell: {found}. Take more samples to detect smaller ones."
    if diff.exit_code == 3:
        yield "It cannot tell at any point: exit code 3."


def slow_down(point: Compared) -> str:
    """Format a detectable slow-down.

    >>> from types import SimpleNamespace
    >>> [slow_down(SimpleNamespace(detectable=ratio)) for ratio in (1.314, 250.0, math.inf)]
    ['1.31x', '250x', 'none (too few samples)']
    """
    return "none (too few samples)" if point.detectable == math.inf else f"{point.detectable:.3g}x"


def report_of(diff: Diff) -> dict[str, Any]:
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
