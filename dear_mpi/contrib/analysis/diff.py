"""Test whether one benchmark run is slower than another, at each point of both.

A median's logarithm gets its standard error from several launches (Student's test, common spread), or from its 95 %
interval, where similar neighbouring samples count less (``worth_one``). Holm's adjustment bounds the chance of any
false slow-down at 5 %. Source: Hunold and Carpen-Amarie (arXiv 1505.07734).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from rich.console import Console

from dear_mpi.bench.case import job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.saved import CHOSEN, Point, Run, point_of, points_of
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, quantile, tail, worth_one
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural

# Compared keys of ``provenance``: all but ranks' cores.
HEAD = (
    *("host", "date", "version", "commit", "command", "mpi", "launcher", "hosts", "cores", "clock", "cpu", "kernel"),
    *("congestion_control", "versions", "environment"),
)
IN_TITLE = CHOSEN.index("algorithm")  # columns before the algorithm
CHANCE = 0.05  # of any false slow-down
LEAST_US = 1e-6
UNSURE = "cannot tell"


@dataclass(frozen=True)
class Compared:
    a: Sequence[Row]
    b: Sequence[Row]
    at_least: float
    log_ratio: float  # of B / A
    error: float  # standard
    freedom: int
    slower: float = 1.0  # adjusted p-values
    faster: float = 1.0
    tests: int = 1

    def chance(self, sign: int) -> float:
        """The p-value if B is at most ``at_least`` slower (faster, if ``sign`` is -1)."""
        over = sign * self.log_ratio - math.log1p(self.at_least)
        return tail(over / self.error, self.freedom) if self.error else float(over <= 0)

    @property
    def detectable(self) -> float:
        """The least B / A that counts as slower here, if no other test found anything."""
        reach = quantile(CHANCE / self.tests, self.freedom) * self.error if self.error else 0.0
        return math.exp(min(math.log1p(self.at_least) + reach, 700)) if reach < math.inf else math.inf

    @property
    def ratio(self) -> Median:
        """B / A with its 95 % interval."""
        reach = quantile((1 - 0.95) / 2, self.freedom) * self.error
        return Median(*(math.exp(min(self.log_ratio + each, 700)) for each in (0.0, -reach, reach)))

    @property
    def verdict(self) -> str:
        ratio, most = self.ratio, 1 + self.at_least
        if min(self.slower, self.faster) <= CHANCE:
            return "slower" if self.slower <= CHANCE else "faster"
        return f"within {self.at_least * 100:g}%" if 1 / most <= ratio.low and ratio.high <= most else UNSURE

    def as_report(self) -> dict[str, Any]:
        return {
            **chosen(self.a[0]),
            "a_us": middle_us(self.a),
            "b_us": middle_us(self.b),
            "a_launches": len(self.a),
            "b_launches": len(self.b),
            "ratio": self.ratio.value,
            "ci_low": self.ratio.low,
            "ci_high": self.ratio.high,
            "p_slower": self.slower,
            "p_faster": self.faster,
            "verdict": self.verdict,
            "detectable": self.detectable if self.detectable < math.inf else None,
        }


@dataclass(frozen=True)
class Diff:
    """Two sides of launches; ``alone``: points of one side only."""

    a: Sequence[Run]
    b: Sequence[Run]
    at_least: float
    points: list[Compared]
    alone: tuple[list[Row], list[Row]]
    differs: dict[str, tuple[str, str]]  # in where and how the files were made

    @property
    def slower(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == "slower"]

    @property
    def unsure(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == UNSURE]

    @property
    def exit_code(self) -> int:
        """1 if any point is slower, 3 if none could be tested."""
        return 1 if self.slower else 3 * (len(self.unsure) == len(self.points))

    @property
    def sees_launches(self) -> bool:
        return len(self.a) + len(self.b) > 2

    def as_report(self) -> dict[str, Any]:
        return {
            "a": [run.name for run in self.a],
            "b": [run.name for run in self.b],
            "at_least": self.at_least,
            "differs": {name: {"a": a, "b": b} for name, (a, b) in self.differs.items()},
            "slower": len(self.slower),
            "exit_code": self.exit_code,
            "points": [each.as_report() for each in self.points],
            "only_in": {side: list(map(chosen, rows)) for side, rows in zip("ab", self.alone, strict=True)},
        }


def chosen(row: Row) -> dict[str, Any]:
    return dict(zip(CHOSEN, point_of(row), strict=True))


def compare_runs(a: Sequence[Run], b: Sequence[Run], at_least: float) -> Diff:
    """Test whether ``b`` is slower by at least this share. ValueError: incomparable runs."""
    for other in (*a[1:], *b):
        check_comparable(a[0], other)
    one, two = launches(a), launches(b)
    found = [compared(mine, two[point], at_least) for point, mine in one.items() if point in two]
    chances = [holm([each.chance(sign) for each in found]) for sign in (1, -1)]
    points = [
        replace(each, slower=slower, faster=faster, tests=len(found))
        for each, slower, faster in zip(found, *chances, strict=True)
    ]
    alone = [
        [rows[0] for point, rows in side.items() if point not in other] for side, other in ((one, two), (two, one))
    ]
    texts = heads(a), heads(b)
    told = texts[0] | texts[1]
    if not all(HEAD[0] in run.head for run in (*a, *b)):  # a file with only rows
        told = {name: text for name, text in told.items() if name in texts[0] and name in texts[1]}
    pairs = {name: (texts[0].get(name, "-"), texts[1].get(name, "-")) for name in told}
    differs = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return Diff(a, b, at_least, points, (alone[0], alone[1]), differs)


def check_comparable(one: Run, other: Run) -> None:
    """Raise ValueError if runs share no point, or only one has emulated links."""
    emulated = [any("EMULATED" in row.backend for row in run.rows) for run in (one, other)]
    if emulated[0] != emulated[1]:
        real, slowed = (other, one) if emulated[0] else (one, other)
        raise ValueError(f"links are emulated in {slowed.name} and real in {real.name}: they cannot be compared")
    if points_of(one).keys() & points_of(other).keys():
        return
    for name in CHOSEN:
        values = [dict.fromkeys(getattr(row, name) for row in run.rows) for run in (one, other)]
        if not values[0].keys() & values[1].keys():
            here, there = (", ".join(map(str, each)) for each in values)
            alike = "; bench --start barrier makes them alike" * (name == "start")
            raise ValueError(
                f"no point is in both runs: {name} is {here} in {one.name}, and {there} in {other.name}{alike}"
            )
    raise ValueError(f"no point is in both {one.name} and {other.name}: a point is {', '.join(CHOSEN)}")


def heads(runs: Sequence[Run]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        libraries = ", ".join(dict.fromkeys(row.backend for row in run.rows))
        known = {name: run.head[name] for name in HEAD if name in run.head} | {"library": libraries}
        for name, value in {**known, "ranks on each host": run.rows[0].hosts}.items():
            found.setdefault(name, {})[text_of(value)] = None
    return {name: "; ".join(values) for name, values in found.items()}


def text_of(value: Any) -> str:
    """
    >>> text_of(["dear-mpi", "bench"]), text_of({"numpy": "2"}), text_of(4)
    ('dear-mpi bench', 'numpy 2', '4')
    """
    if isinstance(value, Mapping):
        value = [f"{name} {each}" for name, each in value.items()]
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def launches(runs: Sequence[Run]) -> dict[Point, list[Row]]:
    found = grouped((row for run in runs for row in points_of(run).values()), point_of)
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(point[:IN_TITLE] for point in found))}
    return dict(sorted(found.items(), key=lambda each: (kinds[each[0][:IN_TITLE]], each[1][0].bytes)))


def middle_us(rows: Sequence[Row]) -> float:
    return math.exp(fmean(math.log(row.p50_us) for row in rows))


def compared(a: Sequence[Row], b: Sequence[Row], at_least: float) -> Compared:
    log_ratio, told = math.log(middle_us(b) / middle_us(a)), [[within(row) for row in side] for side in (a, b)]
    error = math.hypot(*(error / len(side) for side in told for error, _ in side))
    freedom = len(a) + len(b) - 2
    if freedom == 0:
        freedom = max(1, int(min(worth for side in told for _, worth in side)) - 1)
    else:
        logs = [[math.log(row.p50_us) for row in side] for side in (a, b)]
        squares = sum(variance(side) * (len(side) - 1) for side in logs if len(side) > 1)
        error = max(math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b))), error)
    return Compared(a, b, at_least, log_ratio, error, freedom)


def within(row: Row) -> tuple[float, float]:
    """Return the standard error of a median's logarithm (infinite for few samples), and the independent samples."""
    if row.samples < FEWEST_SAMPLES:
        return math.inf, row.samples
    error = math.log(max(row.ci_high_us, row.p50_us) / max(min(row.ci_low_us, row.p50_us), LEAST_US)) / (2 * Z)
    alike = 1.0 if row.times_us is None else worth_one(job_us(row))
    return error * math.sqrt(alike), row.samples / alike


ONE_LAUNCH = (
    "note: a single run of each side. What differs from launch to launch cannot be seen, and is often more than these "
    "intervals: compare several, as A1.json,A2.json,A3.json B1.json,B2.json,B3.json"
)
COLUMNS: dict[str, Callable[[Compared], str]] = {
    "bytes": lambda each: format_bytes(each.a[0].bytes),
    "algorithm": lambda each: each.a[0].algorithm,
    "memory": lambda each: each.a[0].memory,
    "segment": lambda each: format_bytes(each.a[0].segment_bytes),
    "A (us)": lambda each: f"{middle_us(each.a):.1f}",
    "B (us)": lambda each: f"{middle_us(each.b):.1f}",
    "B / A": lambda each: f"{each.ratio.value:.2f}",
    "95 % interval": lambda each: (
        f"{each.ratio.low:.2f} to {each.ratio.high:.2f}" if each.ratio.high < 100 else "unknown"
    ),
    "verdict": lambda each: each.verdict,
}


def show_diff(screen: Console, diff: Diff) -> None:
    def say(*lines: str) -> None:
        for line in lines:
            screen.print(line, soft_wrap=True)

    say(
        *(
            f"{letter}: {', '.join(run.name for run in runs)}"
            for letter, runs in zip("AB", (diff.a, diff.b), strict=True)
        )
    )
    if diff.differs:
        heads: dict[str, Callable[[tuple[str, tuple[str, str]]], str]] = {
            "what differs": lambda each: each[0],
            "A": lambda each: each[1][0],
            "B": lambda each: each[1][1],
        }
        screen.print(table([diff.differs.items()], heads, left=heads))
    for title, points in grouped(diff.points, lambda each: titled(each.a[0])).items():
        alike = [head for head in ("memory", "segment") if len(set(map(COLUMNS[head], points))) == 1]
        columns = {head: text for head, text in COLUMNS.items() if head not in alike}
        lines = grouped(points, lambda each: each.a[0].bytes).values()
        screen.print(table(lines, columns, left=("algorithm", "memory", "verdict"), title=title))
    for letter, rows in zip("AB", diff.alone, strict=True):
        say(*(f"only in {letter}: {titled(row)}, {row.algorithm}, {format_bytes(row.bytes)}" for row in rows))
    say(summary(diff), *detectable(diff), *[ONE_LAUNCH] * (not diff.sees_launches))


def titled(row: Row) -> str:
    collective, ranks, *others, start = point_of(row)[:IN_TITLE]
    told = (each for each in others if each != "none")
    return ", ".join([collective, plural(ranks, "rank"), *told, f"start {start}"])


def summary(diff: Diff) -> str:
    counts = dict.fromkeys(("slower", "faster", f"within {diff.at_least * 100:g}%", UNSURE), 0)
    for each in diff.points:
        counts[each.verdict] += 1
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return (
        f"{plural(len(diff.points), 'point')}: {said}. slower: B takes over {diff.at_least * 100:g}% longer than A; if "
        "no point does, one is reported in at most 5% of comparisons. A and B: "
        f"{'geometric means of the medians of launches' if diff.sees_launches else 'medians'}."
    )


def detectable(diff: Diff) -> Iterator[str]:

    def told(each: Compared) -> str:
        least = "none (too few samples)" if each.detectable == math.inf else f"{each.detectable:.3g}x"
        return f"{least} ({each.a[0].algorithm}, {format_bytes(each.a[0].bytes)})"

    if diff.unsure:
        ends = dict.fromkeys(told(of(diff.unsure, key=lambda each: each.detectable)) for of in (min, max))
        yield f"Smallest detectable slow-down where it cannot tell: {' to '.join(ends)}. More samples detect less."
    if diff.exit_code == 3:
        yield "It cannot tell at any point: exit code 3."


def holm(chances: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests under any dependence (Holm, 1979).

    >>> holm([0.04, 0.01, 0.5])
    [0.08, 0.03, 0.5]
    """
    adjusted, worst = [1.0] * len(chances), 0.0
    for passed, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        worst = max(worst, (len(chances) - passed) * chances[place])
        adjusted[place] = min(1.0, worst)
    return adjusted
