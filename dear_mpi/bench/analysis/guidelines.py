"""Check performance guidelines: a collective should be no slower than other calls that do its work.

    all_reduce   ################# 95 us       a breach: the two calls below are the faster all_reduce
    in its place ##### 30 us, then ###### 31 us

No library keeps every guideline: if it switches algorithms at some size, the new one is often the wrong one.

Sizes are row sizes: the full buffer. Times are medians. Calls in sequence take at most the sum of their times, so the
sum causes no breach. But rows are measured in sequence: a disturbance of a second can look like a breach, so measure an
important one twice.

Source: Traeff, Gropp and Thakur, Self-Consistent MPI Performance Guidelines (IEEE TPDS 21, 2010); Hunold,
Carpen-Amarie, Luebbe and Traeff, PGMPI (arXiv 1606.00215), the source of most of this table.

Results:

    broken        the call is slower by more than ``LEAST``, beyond the intervals of the medians
    kept          it is not, with equal certainty
    cannot tell   otherwise: intervals are too wide or missing, or all candidates were slower than at the next larger
                  size, which indicates a disturbance

Holm's adjustment (``dear_mpi/reporting/stats.py``) bounds the chance of any false breach at 5 %. The ratio's interval
combines both intervals in squares on a logarithmic scale (Zou and Donner, Statistics in Medicine, 2008).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from rich.console import Console

from dear_mpi.bench.backends import BEST, candidate, name_of
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.native import FORMS, nonblocking, persistent
from dear_mpi.bench.peers import Case
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, holm, tail
from dear_mpi.reporting.units import format_bytes, grouped

Term: TypeAlias = tuple[Row, int]  # a call, and its number of repetitions
Find: TypeAlias = Callable[[Row, Sequence[Row]], Term | None]
Conditions: TypeAlias = tuple[object, ...]


def same_size(row: Row, found: Sequence[Row]) -> Term | None:
    """Return rows of this size, up to rounding to whole elements of each rank."""
    near = [each for each in found if abs(each.bytes - row.bytes) < grain(row)]
    return (min(near, key=lambda each: abs(each.bytes - row.bytes)), 1) if near else None


def for_each_rank(row: Row, found: Sequence[Row]) -> Term | None:
    """Return the rows of the smallest size at which each rank contributes as much as the root does here."""
    return smallest(row.bytes * row.ranks, found)


def any_size(row: Row, found: Sequence[Row]) -> Term | None:
    return smallest(0, found)


def next_larger(row: Row, found: Sequence[Row]) -> Term | None:
    return smallest(row.bytes + 1, found)


def in_pieces(row: Row, found: Sequence[Row]) -> Term | None:
    """Return the next smaller size with its repetitions, if it divides this size."""
    smaller = max((each for each in found if 0 < each.bytes < row.bytes), key=by_size, default=None)
    return None if smaller is None or row.bytes % smaller.bytes else (smaller, row.bytes // smaller.bytes)


by_size = attrgetter("bytes")


def smallest(nbytes: int, found: Sequence[Row]) -> Term | None:
    least = min((each for each in found if each.bytes >= nbytes), key=by_size, default=None)
    return None if least is None else (least, 1)


def grain(row: Row) -> int:
    return row.ranks * (row.bytes // row.count if row.count else 1)


@dataclass(frozen=True)
class Guideline:
    """A call should be no slower than a sequence of other calls."""

    calls: tuple[str, ...]  # the replacement calls; the same collective if none is named
    text: str  # the guideline's text, S for the size
    instead: str  # advice to the user if it is broken
    find: Find = same_size  # the size of the replacement calls

    def terms(self, row: Row, rows: Mapping[str, Sequence[Row]]) -> list[Term] | None:
        """Return the replacement calls; None if they were not measured."""
        found = [self.find(row, same_op(row, rows.get(name, ()))) for name in self.calls or (row.collective,)]
        terms = [term for term in found if term is not None]
        return terms if len(terms) == len(found) else None


def same_op(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Return rows with the same op or none; a call that combines nothing may replace a sum."""
    op = "sum" if row.op == "none" else row.op
    return [each for each in rows if each.op in (op, "none")]


two = partial(Guideline, instead="make these two calls instead")
one = partial(Guideline, instead="make that call instead, and take from its result what is needed")
zeros = partial(Guideline, instead="make that call instead, with zeros in place of what the other ranks bring")
LARGER = Guideline((), "{0}(S) <= {0}(larger S)", "a buffer that is padded to that size is faster", next_larger)
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
        one(("all_gather",), "broadcast(S) <= all_gather(n S)", find=for_each_rank),
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
    "barrier": (one(("all_reduce",), "barrier <= all_reduce(S)", find=any_size),),
}
CONDITIONS = attrgetter(
    *("algorithm", "backend", "device", "ranks", "hosts", "dtype", "placement", "cadence", "start", "arrival"),
    "memory",
)


def conditions(row: Row) -> Conditions:
    """Return the settings that rows of a guideline share; segments matter only for our candidates."""
    same = map(str, CONDITIONS(row))
    return (*same, row.segment_bytes if candidate(row.algorithm).segments else 0)


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Guideline, Row, list[Term]]]:
    """Yield each testable guideline: the call and its replacement, both with right results."""
    right = [row for row in rows if row.ranks > 1 and row.is_balanced and not row.wrong]
    several = [*right, *best_calls(right)]
    for alike in grouped(several, conditions).values():
        group = grouped(alike, attrgetter("collective"))
        for row in (row for same in group.values() for row in same):
            for guideline in (*GUIDELINES.get(row.collective, ()), LARGER):
                if terms := guideline.terms(row, group):
                    yield guideline, row, terms


def best_calls(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest call of each library in each case, with its name in ``chosen``.

    The interval's ends are the least over all calls: the fastest of many calls was often lucky.
    """
    calls_of_all = [row for row in rows if candidate(row.algorithm).is_library]
    cases = grouped(calls_of_all, lambda row: (*conditions(named_best(row)), row.collective, row.bytes, row.op))
    return [best(calls) for calls in cases.values() if len(calls) > 1]


def named_best(row: Row) -> Row:
    return replace(row, algorithm=candidate(row.algorithm).maker + BEST)


def best(calls: Sequence[Row]) -> Row:
    fastest = min(calls, key=lambda row: row.p50_us)
    low_us, high_us = (min(getattr(row, end) for row in calls) for end in ("ci_low_us", "ci_high_us"))
    samples = min(row.samples for row in calls)
    return replace(
        named_best(fastest),
        chosen=fastest.algorithm,
        samples=samples,
        ci_low_us=low_us,
        ci_high_us=max(high_us, fastest.p50_us),
        times_us=None,
    )


LEAST = 0.05  # a smaller share is no reason to change a program
CHANCE = 0.05  # that any breach is reported for a run that keeps all guidelines
BROKEN, KEPT, OPEN = "broken", "kept", "cannot tell"
SHOWN = ("collective", "algorithm", "ranks", "bytes", "dtype", "op", "placement", "cadence", "memory", "segment_bytes")
MPI_CALLS = {
    "all_reduce": "Allreduce",
    "reduce_scatter": "Reduce_scatter_block",
    "all_gather": "Allgather",
    "broadcast": "Bcast",
    "reduce": "Reduce",
    "all_to_all": "Alltoall",
    "gather": "Gather",
    "scatter": "Scatter",
    "barrier": "Barrier",
}
BY_COUNTS = {
    "reduce_scatter": "Reduce_scatter",
    "all_gather": "Allgatherv",
    "gather": "Gatherv",
    "scatter": "Scatterv",
}


@dataclass(frozen=True)
class Judged:
    """A guideline at one size: the call's time over its replacement's time (``terms``)."""

    guideline: Guideline
    row: Row
    terms: Sequence[Term]
    ratio: Median
    chance: float  # an adjusted p-value of a breach
    disturbed: bool = False  # whether all candidates were slow in this case

    @property
    def verdict(self) -> str:
        if self.chance <= CHANCE:
            return OPEN if self.disturbed else BROKEN
        return KEPT if told(self.row, self.terms) and self.ratio.high <= 1 + LEAST else OPEN

    @property
    def name(self) -> str:
        return self.guideline.text.format(self.row.collective)

    @property
    def sentence(self) -> str:
        row, ratio = self.row, self.ratio
        times = f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g}) times"
        both = " and ".join(term_text(row, term) for term in self.terms)
        after = ", one after the other" if len(self.terms) > 1 else ""
        spent = f"{row.p50_us:.4g} us in place of {total_us(self.terms):.4g}"
        return (
            f"{call_text(row)} of {format_bytes(row.bytes)} takes {times} as long as {both}{after} ({spent}): "
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
            "instead_us": total_us(self.terms),
            "ratio": self.ratio.value,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "chance": self.chance,
            "disturbed": self.disturbed,
            "verdict": self.verdict,
            "sentence": self.sentence,
        }


def judged(rows: Sequence[Row]) -> list[Judged]:
    """Test every guideline that these rows allow, in the order of the rows."""
    found = list(pairs(rows))
    chances = holm([chance_of(row, terms) for _, row, terms in found])
    alone = [
        Judged(guideline, row, terms, ratio_of(row, terms), chance)
        for (guideline, row, terms), chance in zip(found, chances, strict=True)
    ]
    disturbed = disturbed_cases(alone)
    return [replace(each, disturbed=each.row.case in disturbed) for each in alone]


def disturbed_cases(found: Sequence[Judged]) -> set[Case]:
    """Return cases with several candidates that were all slower than at the next larger size."""
    makers: dict[Case, dict[str, bool]] = {}
    for each in found:
        if each.guideline is LARGER:
            case = makers.setdefault(each.row.case, {})
            case[name_of(each.row)] = case.get(name_of(each.row), False) or each.verdict == BROKEN
    return {case for case, broken in makers.items() if len(broken) > 1 and all(broken.values())}


def total_us(terms: Sequence[Term]) -> float:
    return sum(times * row.p50_us for row, times in terms)


def told(row: Row, terms: Sequence[Term]) -> bool:
    """Return whether all medians have an interval, and none is wider than its median."""
    rows = [row, *(each for each, _ in terms)]
    return all(each.samples >= FEWEST_SAMPLES and not each.median_us.is_noisy for each in rows)


def reach(row: Row, terms: Sequence[Term], end: str) -> float:
    """Return how far the logarithm of the ratio reaches to this end of its 95 % interval."""
    other, total = ("ci_high_us", "ci_low_us")[end == "high"], total_us(terms)
    mine = math.log(row.p50_us / max(getattr(row, f"ci_{end}_us"), 0.01 * row.p50_us))
    theirs = math.hypot(*(times * (getattr(each, other) - each.p50_us) for each, times in terms))
    rest = total - theirs if end == "high" else total + theirs
    return math.hypot(mine, math.log(max(rest / total, 0.01)))


def ratio_of(row: Row, terms: Sequence[Term]) -> Median:
    value = row.p50_us / total_us(terms)
    low, high = (reach(row, terms, end) for end in ("low", "high"))
    return Median(value, value * math.exp(-low), value * math.exp(high))


def chance_of(row: Row, terms: Sequence[Term]) -> float:
    """Return the unadjusted p-value of a breach: half of a 95 % interval is ``Z`` standard errors."""
    if not told(row, terms):
        return 1.0
    over = math.log(row.p50_us / total_us(terms)) - math.log1p(LEAST)
    error = reach(row, terms, "low") / Z
    samples = min(each.samples for each in (row, *(each for each, _ in terms)))
    return tail(over / error, samples - 1) if error else float(over <= 0)


def term_text(row: Row, term: Term) -> str:
    """Name a replacement call by its difference from the row."""
    other, times = term
    size = "" if abs(other.bytes - row.bytes) < grain(row) else f" of {format_bytes(other.bytes)}"
    name = "" if other.collective == row.collective else call_text(other)
    if times > 1:
        return f"{times} calls{size}"
    return f"{name}{size}".strip() if name else f"one{size}"


def call_text(row: Row) -> str:
    """Name the call of a program: MPI_Iallreduce, or all_reduce by ring."""
    who, name = candidate(row.algorithm), MPI_CALLS.get(row.collective)
    if not who.is_library or name is None:
        return f"{row.collective} by {row.algorithm}"
    if row.algorithm == who.maker + BEST:
        return f"the fastest kind of MPI_{name} ({row.chosen})"
    form = FORMS[row.algorithm.removeprefix(who.maker)]
    if form.counts or row.count % row.ranks:
        name = BY_COUNTS.get(row.collective, name)
    if form.prepare is nonblocking:
        return f"MPI_I{name.lower()}"
    return f"MPI_{name}_init" if form.prepare is persistent else f"MPI_{name}"


def whose(each: Judged) -> tuple[str, ...]:
    """Return the key of breaches that share a line: guideline, library and measurement."""
    row = each.row
    return each.name, name_of(row), row.backend, row.placement, row.dtype, row.op, row.cadence, str(row.ranks)


def guideline_lines(found: Sequence[Judged]) -> list[str]:
    """List broken guidelines with their worst size and call, and count the kept ones."""
    groups = grouped([each for each in found if each.verdict == BROKEN], whose)
    lines = []
    for (name, maker, *_), same in groups.items():
        worst = max(same, key=lambda each: each.ratio.low)
        lines.append(f"GUIDELINE BROKEN by {maker}, {name}: {worst.sentence}{others_text(worst, same)}")
    for row in {each.row.case: each.row for each in found if each.disturbed}.values():
        where = f"{row.collective} of {format_bytes(row.bytes)}"
        lines.append(
            f"{where}: all took longer than at the next size; if it is no disturbance, a second run has it, too"
        )
    if found:
        counts = {verdict: sum(each.verdict == verdict for each in found) for verdict in (KEPT, BROKEN, OPEN)}
        told_of = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(f"guidelines: {told_of} (broken: at least {LEAST:.0%} longer, beyond the intervals of all)")
    return lines


def others_text(worst: Judged, same: Sequence[Judged]) -> str:
    """List the other sizes and calls of the same library that break it."""
    sizes = sorted({each.row.bytes for each in same} - {worst.row.bytes})
    calls = dict.fromkeys(each.row.algorithm for each in same if each.row.algorithm != worst.row.algorithm)
    parts = [f"at {', '.join(map(format_bytes, sizes))}"] * bool(sizes) + [f"by {', '.join(calls)}"] * bool(calls)
    return f" (also {'; '.join(parts)})" if parts else ""


def show_guidelines(screen: Console, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Print the breaches and the count as comments. Returns all guidelines for ``--json``."""
    found = judged(rows)
    for line in guideline_lines(found):
        screen.print(f"# {line}", markup=False, soft_wrap=True)
    return [each.as_report() for each in found]
