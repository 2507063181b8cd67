"""Whether a run of the benchmark is slower than another one, at each point that both have.

The medians of both runs are compared on a scale of logarithms. What is tested is whether the second one takes longer by
more than a share that somebody cares about, ``at_least``; so a slow-down below it never counts, however sure it is.

How far a median may be off, its standard error, is told by

* launches, where a side has several: the medians of the launches scatter, by what differs from launch to launch, too
  (which cores and which memory the ranks have), and that is usually more than within one. Student's test, with the
  spread that both sides have in common; a side of one launch is held against that of the others.
* else the intervals of the two medians: half of each is 1.96 standard errors. If the samples are in the file (bench
  --raw) and neighbours are alike, they are worth fewer (``worth_one``). What differs between launches is not seen.

All points are asked at once, so some would be slower by chance. With the adjustment of Holm
(``dear_mpi/reporting/stats.py``), a pair of runs that do not differ has any slower point with at most 5 %.

Source for several launches: Hunold and Carpen-Amarie, MPI Benchmarking Revisited (arXiv 1505.07734).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from dear_mpi.bench.case import job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.runs.saved import CHOSEN, Point, Run, check_comparable, heads, point_of
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, holm, quantile, tail, worth_one
from dear_mpi.reporting.units import grouped

IN_TITLE = CHOSEN.index("algorithm")  # of a point, what comes before it
CHANCE = 0.05  # that any point of equal runs is said to be slower
LEAST_US = 1e-6
UNSURE = "cannot tell"


@dataclass(frozen=True)
class Estimate:
    """The logarithm of B / A with its standard error, which so many degrees of freedom tell."""

    log_ratio: float
    error: float
    freedom: int

    def chance(self, least: float, sign: int = 1) -> float:
        """Of such a ratio, or a more extreme one, if B took at most so much longer; shorter if ``sign`` is -1."""
        over = sign * self.log_ratio - math.log1p(least)
        if self.error == 0:
            return float(over <= 0)
        return tail(over / self.error, self.freedom)

    def least_seen(self, least: float, tests: int) -> float:
        """The least B / A at which this point would be called slower, if no other of the tests found anything."""
        reach = quantile(CHANCE / tests, self.freedom) * self.error if self.error else 0.0
        return math.exp(min(math.log1p(least) + reach, 700)) if reach < math.inf else math.inf

    @property
    def ratio(self) -> Median:
        """B / A with its 95 % interval."""
        reach = quantile((1 - 0.95) / 2, self.freedom) * self.error
        return Median(*(math.exp(min(self.log_ratio + each, 700)) for each in (0.0, -reach, reach)))


@dataclass(frozen=True)
class Compared:
    """A point of both runs: its rows in the launches of each side, and what they tell."""

    a: Sequence[Row]
    b: Sequence[Row]
    estimate: Estimate
    slower: float  # adjusted p-values
    faster: float
    at_least: float
    detectable: float  # the least B / A that would have been called slower

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
    """Two sides, each of one launch or several; ``alone``: the points that only one of them has."""

    a: Sequence[Run]
    b: Sequence[Run]
    at_least: float
    points: list[Compared]
    alone: tuple[list[Row], list[Row]]
    differs: dict[str, tuple[str, str]]  # of what the files say of where and how they were made

    @property
    def slower(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == "slower"]

    @property
    def unsure(self) -> list[Compared]:
        return [each for each in self.points if each.verdict == UNSURE]

    @property
    def exit_code(self) -> int:
        """1 if any point is slower, 3 if it cannot be told at any point whether it is."""
        return 1 if self.slower else 3 * (len(self.unsure) == len(self.points))

    @property
    def sees_launches(self) -> bool:
        return len(self.a) + len(self.b) > 2


def compare_runs(a: Sequence[Run], b: Sequence[Run], at_least: float) -> Diff:
    """Ask whether ``b`` takes at least this share longer than ``a``; a ValueError if the runs cannot be compared."""
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
    """The row of each launch, by points; sizes go up in all that is alike but for the size and who carries it out."""
    found = grouped((row for run in runs for row in run.points.values()), point_of)
    kinds = {kind: place for place, kind in enumerate(dict.fromkeys(point[:IN_TITLE] for point in found))}
    return dict(sorted(found.items(), key=lambda each: (kinds[each[0][:IN_TITLE]], each[1][0].bytes)))


def middle_us(rows: Sequence[Row]) -> float:
    return math.exp(fmean(math.log(row.p50_us) for row in rows))


def estimate(a: Sequence[Row], b: Sequence[Row]) -> Estimate:
    """B / A of a point, of which each side has one launch or several."""
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
    """The standard error of the logarithm of a median, and how many independent samples tell it.

    Fewer than ``FEWEST_SAMPLES`` samples do not tell it.
    """
    if row.samples < FEWEST_SAMPLES:
        return math.inf, row.samples
    error = math.log(max(row.ci_high_us, row.p50_us) / max(min(row.ci_low_us, row.p50_us), LEAST_US)) / (2 * Z)
    if row.times_us is None:
        return error, row.samples
    alike = worth_one(job_us(row))
    return error * math.sqrt(alike), row.samples / alike
