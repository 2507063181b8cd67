"""Check performance guidelines: a collective should be no slower than other calls that do its work.

    all_reduce   ################# 95 us       a breach: the two calls below are the faster all_reduce
    in its place ##### 30 us, then ###### 31 us

    broken        slower by more than ``LEAST``, beyond the intervals of the medians
    kept          not, with equal certainty
    cannot tell   intervals too wide or missing, or all candidates slower than at the next larger size (disturbed)

Holm's adjustment bounds the chance of any false breach at 5 %. A ratio's interval combines both in squares on a
logarithmic scale (Zou and Donner, Statistics in Medicine, 2008). Source: Traeff, Gropp and Thakur (IEEE TPDS 21, 2010);
Hunold et al. (arXiv 1606.00215).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from rich.console import Console

from dear_mpi.bench.backends import BEST, LIBRARY, candidate
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.run import Look, Report
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.contrib.analysis.diff import holm
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, tail
from dear_mpi.reporting.units import format_bytes, grouped

Term: TypeAlias = tuple[Row, int]  # a call, its repetitions
Find: TypeAlias = Callable[[Row, Sequence[Row]], Term | None]

LEAST = 0.05
CHANCE = 0.05  # of any false breach
BROKEN, KEPT, OPEN = "broken", "kept", "cannot tell"
SHOWN = ("collective", "algorithm", "ranks", "bytes", "dtype", "op", "placement", "cadence", "memory", "segment_bytes")
by_size = attrgetter("bytes")


def grain(row: Row) -> int:
    return row.ranks * (row.bytes // row.count if row.count else 1)


def same_size(row: Row, found: Sequence[Row]) -> Term | None:
    """Up to rounding to whole elements of each rank."""
    near = [each for each in found if abs(each.bytes - row.bytes) < grain(row)]
    return (min(near, key=lambda each: abs(each.bytes - row.bytes)), 1) if near else None


def smallest(nbytes: int, found: Sequence[Row]) -> Term | None:
    least = min((each for each in found if each.bytes >= nbytes), key=by_size, default=None)
    return None if least is None else (least, 1)


def in_pieces(row: Row, found: Sequence[Row]) -> Term | None:
    """The next smaller size with its repetitions, if it divides this size."""
    smaller = max((each for each in found if 0 < each.bytes < row.bytes), key=by_size, default=None)
    return None if smaller is None or row.bytes % smaller.bytes else (smaller, row.bytes // smaller.bytes)


@dataclass(frozen=True)
class Guideline:
    calls: tuple[str, ...]  # replacements; default: the same collective
    text: str  # S for the size
    instead: str  # advice
    find: Find = same_size  # the replacements' size

    def terms(self, row: Row, rows: Mapping[str, Sequence[Row]]) -> list[Term] | None:
        """Return the replacement calls, of the same op or none; None if any was not measured."""
        ops = ("sum" if row.op == "none" else row.op, "none")
        found = []
        for name in self.calls or (row.collective,):
            term = self.find(row, [each for each in rows.get(name, ()) if each.op in ops])
            if term is None:
                return None
            found.append(term)
        return found


two = partial(Guideline, instead="make these two calls instead")
one = partial(Guideline, instead="make that call instead, and take from its result what is needed")
zeros = partial(Guideline, instead="make that call instead, with zeros in place of what the other ranks bring")
LARGER = Guideline(
    (),
    "{0}(S) <= {0}(larger S)",
    "a buffer that is padded to that size is faster",
    lambda row, found: smallest(row.bytes + 1, found),
)
PIECES = Guideline((), "{0}(S) <= k {0}(S / k)", "cut the buffer, and make that call for each piece", in_pieces)
GUIDELINES: Mapping[str, tuple[Guideline, ...]] = {
    "all_reduce": (
        two(("reduce_scatter", "all_gather"), "all_reduce(S) <= reduce_scatter(S) + all_gather(S)"),
        two(("reduce", "broadcast"), "all_reduce(S) <= reduce(S) + broadcast(S)"),
        PIECES,
    ),
    "reduce_scatter": (
        one(("all_reduce",), "reduce_scatter(S) <= all_reduce(S)"),
        two(("reduce", "scatter"), "reduce_scatter(S) <= reduce(S) + scatter(S)"),
    ),
    "all_gather": (
        zeros(("all_reduce",), "all_gather(S) <= all_reduce(S)"),
        one(("all_to_all",), "all_gather(S) <= all_to_all(S)"),
        two(("gather", "broadcast"), "all_gather(S) <= gather(S) + broadcast(S)"),
    ),
    "broadcast": (
        two(("scatter", "all_gather"), "broadcast(S) <= scatter(S) + all_gather(S)"),
        # where each rank contributes as much as the root here
        one(
            ("all_gather",),
            "broadcast(S) <= all_gather(n S)",
            find=lambda row, found: smallest(row.bytes * row.ranks, found),
        ),
        zeros(("all_reduce",), "broadcast(S) <= all_reduce(S)"),
        PIECES,
    ),
    "reduce": (
        one(("all_reduce",), "reduce(S) <= all_reduce(S)"),
        two(("reduce_scatter", "gather"), "reduce(S) <= reduce_scatter(S) + gather(S)"),
        PIECES,
    ),
    "gather": (
        one(("all_gather",), "gather(S) <= all_gather(S)"),
        zeros(("reduce",), "gather(S) <= reduce(S)"),
    ),
    "scatter": (
        one(("broadcast",), "scatter(S) <= broadcast(S)"),
        one(("all_to_all",), "scatter(S) <= all_to_all(S)"),
    ),
    "barrier": (one(("all_reduce",), "barrier <= all_reduce(S)", find=lambda row, found: smallest(0, found)),),
}


def conditions(row: Row) -> tuple[object, ...]:
    """The settings that rows of a guideline share."""
    names = ("algorithm", "backend", "device", "ranks", "hosts", "dtype", "placement", "cadence", "start", "memory")
    same = (str(getattr(row, name)) for name in names)
    return (*same, row.segment_bytes if candidate(row.algorithm).segments else 0)


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Guideline, Row, list[Term]]]:
    right = [row for row in rows if row.ranks > 1 and not row.wrong]
    for alike in grouped([*right, *best_calls(right)], conditions).values():
        group = grouped(alike, attrgetter("collective"))
        for row in (row for same in group.values() for row in same):
            for guideline in (*GUIDELINES.get(row.collective, ()), LARGER):
                if terms := guideline.terms(row, group):
                    yield guideline, row, terms


def best_calls(rows: Sequence[Row]) -> list[Row]:
    """Return the library's fastest call of each case, named in ``chosen``.

    Its interval's ends are the least over all calls: the fastest of many was often lucky.
    """
    calls = [replace(row, algorithm=LIBRARY + BEST) for row in rows if candidate(row.algorithm).is_library]
    found = []
    for same in grouped(calls, lambda row: (*conditions(row), row.collective, row.bytes, row.op)).values():
        if len(same) > 1:
            fastest = min(same, key=lambda row: row.p50_us)
            low_us, high_us = (min(getattr(row, end) for row in same) for end in ("ci_low_us", "ci_high_us"))
            ends = {"ci_low_us": low_us, "ci_high_us": max(high_us, fastest.p50_us)}
            found.append(replace(fastest, samples=min(row.samples for row in same), times_us=None, **ends))
    return found


@dataclass(frozen=True)
class Judged:
    """A guideline at one size: a call, and its replacement (``terms``)."""

    guideline: Guideline
    row: Row
    terms: Sequence[Term]
    chance: float = 1.0  # adjusted p-value
    disturbed: bool = False  # all candidates were slow

    @property
    def instead_us(self) -> float:
        return sum(times * row.p50_us for row, times in self.terms)

    @property
    def told(self) -> bool:
        """Whether all medians have an interval, none wider than its median."""
        rows = [self.row, *(each for each, _ in self.terms)]
        return all(each.samples >= FEWEST_SAMPLES and not each.median_us.is_noisy for each in rows)

    def reach(self, end: str) -> float:
        """How far the ratio's logarithm reaches to this end of its 95 % interval."""
        other, total, row = ("ci_high_us", "ci_low_us")[end == "high"], self.instead_us, self.row
        mine = math.log(row.p50_us / max(getattr(row, f"ci_{end}_us"), 0.01 * row.p50_us))
        theirs = math.hypot(*(times * (getattr(each, other) - each.p50_us) for each, times in self.terms))
        rest = total - theirs if end == "high" else total + theirs
        return math.hypot(mine, math.log(max(rest / total, 0.01)))

    @property
    def ratio(self) -> Median:
        value = self.row.p50_us / self.instead_us
        return Median(value, value * math.exp(-self.reach("low")), value * math.exp(self.reach("high")))

    @property
    def by_itself(self) -> float:
        """The unadjusted p-value of a breach."""
        if not self.told:
            return 1.0
        over = math.log(self.row.p50_us / self.instead_us) - math.log1p(LEAST)
        error = self.reach("low") / Z
        samples = min(each.samples for each in (self.row, *(each for each, _ in self.terms)))
        return tail(over / error, samples - 1) if error else float(over <= 0)

    @property
    def verdict(self) -> str:
        if self.chance <= CHANCE:
            return OPEN if self.disturbed else BROKEN
        return KEPT if self.told and self.ratio.high <= 1 + LEAST else OPEN

    @property
    def name(self) -> str:
        return self.guideline.text.format(self.row.collective)

    @property
    def sentence(self) -> str:
        row, ratio = self.row, self.ratio
        instead = " and ".join(term_text(row, term) for term in self.terms)
        return (
            f"{call_text(row)} of {format_bytes(row.bytes)} takes {ratio.value:.3g} ({ratio.low:.3g} to "
            f"{ratio.high:.3g}) times as long as {instead} ({row.p50_us:.4g} us, not {self.instead_us:.4g}): "
            f"{self.guideline.instead}"
        )

    def as_report(self) -> dict[str, Any]:
        return {
            "guideline": self.name,
            **{name: getattr(self.row, name) for name in SHOWN},
            "time_us": self.row.p50_us,
            "instead": [
                {"collective": row.collective, "bytes": row.bytes, "times": times, "time_us": row.p50_us}
                for row, times in self.terms
            ],
            "instead_us": self.instead_us,
            "ratio": self.ratio.value,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "chance": self.chance,
            "disturbed": self.disturbed,
            "verdict": self.verdict,
            "sentence": self.sentence,
        }


def judged(rows: Sequence[Row]) -> list[Judged]:
    found = [Judged(*each) for each in pairs(rows)]
    chances = holm([each.by_itself for each in found])
    found = [replace(each, chance=chance) for each, chance in zip(found, chances, strict=True)]
    makers: dict[tuple[object, ...], dict[str, bool]] = {}  # by case and candidate: whether a larger size was faster
    for each in found:
        if each.guideline is LARGER:
            maker = LIBRARY if candidate(each.row.algorithm).is_library else each.row.algorithm
            case = makers.setdefault(each.row.case, {})
            case[maker] = case.get(maker, False) or each.verdict == BROKEN
    disturbed = {case for case, broken in makers.items() if len(broken) > 1 and all(broken.values())}
    return [replace(each, disturbed=each.row.case in disturbed) for each in found]


def term_text(row: Row, term: Term) -> str:
    other, times = term
    size = "" if abs(other.bytes - row.bytes) < grain(row) else f" of {format_bytes(other.bytes)}"
    if times > 1:
        return f"{times} calls{size}"
    return f"{'one' if other.collective == row.collective else other.collective}{size}"


def call_text(row: Row) -> str:
    fastest = f", {row.chosen}" * (row.algorithm == LIBRARY + BEST)
    return f"{row.collective} by {row.algorithm}{fastest}"


def guideline_lines(found: Sequence[Judged]) -> Iterator[str]:

    def whose(each: Judged) -> tuple[str, ...]:
        row = each.row
        maker = LIBRARY if candidate(row.algorithm).is_library else row.algorithm
        return each.name, maker, row.backend, row.placement, row.dtype, row.op, row.cadence, str(row.ranks)

    for (name, maker, *_), same in grouped([each for each in found if each.verdict == BROKEN], whose).items():
        worst = max(same, key=lambda each: each.ratio.low)
        sizes = sorted({each.row.bytes for each in same} - {worst.row.bytes})
        calls = dict.fromkeys(each.row.algorithm for each in same if each.row.algorithm != worst.row.algorithm)
        also = [f"at {', '.join(map(format_bytes, sizes))}"] * bool(sizes) + [f"by {', '.join(calls)}"] * bool(calls)
        more = f" (also {'; '.join(also)})" if also else ""
        yield f"GUIDELINE BROKEN by {maker}, {name}: {worst.sentence}{more}"
    for row in {each.row.case: each.row for each in found if each.disturbed}.values():
        where = f"{row.collective} of {format_bytes(row.bytes)}"
        yield f"{where}: all took longer than at the next size; if this was no disturbance, a second run repeats it"
    counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in (KEPT, BROKEN, OPEN)}
    told_of = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    yield f"guidelines: {told_of} (broken: at least {LEAST:.0%} longer, beyond the intervals of all)"


def guidelines(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    def look(world: World, suite: Suite, report: Report) -> Look:
        def found() -> tuple[list[dict[str, Any]], list[str]]:
            judgements = judged(report.rows)
            return [each.as_report() for each in judgements], list(guideline_lines(judgements))

        data, lines = said_by_rank_0(world.transport, "--guidelines", found, asleep=True)

        def show(screen: Console) -> None:
            for line in lines:
                screen.print(line, soft_wrap=True)

        return Look({"guidelines": data}, show)

    return look
