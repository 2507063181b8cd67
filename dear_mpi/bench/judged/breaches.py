"""Which guidelines the rows of a run keep, and which they break.

    broken        the call takes longer by more than ``LEAST``, beyond what the intervals of the medians leave open
    kept          it does not, as sure
    cannot tell   else: the intervals are too wide, or there are too few samples for any; or all contestants took longer
                  than at the next larger size, which looks like a disturbance, and not like a call of one of them

All guidelines are asked at once, so some would look broken by chance. With the adjustment of Holm
(``dear_mpi/reporting/stats.py``), a run that keeps them all has any breach with at most 5 %. The ratio's interval has
the ends of both sides' intervals in squares, on a scale of logarithms (Zou and Donner, Statistics in Medicine, 2008).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from dear_mpi.bench.judged.compared import Case
from dear_mpi.bench.judged.guidelines import LARGER, Guideline, Term, grain, pairs
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import BEST, contestant, name_of
from dear_mpi.bench.makers.native import FORMS, nonblocking, persistent
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, Z, holm, tail
from dear_mpi.reporting.units import format_bytes, grouped

LEAST = 0.05  # a share that nobody would change a program for
CHANCE = 0.05  # that a run that keeps all guidelines has any breach
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
    """A guideline at one size: how many times as long the call takes as what takes its place (``terms``)."""

    guideline: Guideline
    row: Row
    terms: Sequence[Term]
    ratio: Median
    chance: float  # an adjusted p-value of a breach
    disturbed: bool = False  # whether all contestants were slow in this case

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
    """Every guideline that these rows can be held against, in the order of the rows."""
    found = list(pairs(rows))
    chances = holm([chance_of(row, terms) for _, row, terms in found])
    alone = [
        Judged(guideline, row, terms, ratio_of(row, terms), chance)
        for (guideline, row, terms), chance in zip(found, chances, strict=True)
    ]
    disturbed = disturbed_cases(alone)
    return [replace(each, disturbed=each.row.case in disturbed) for each in alone]


def disturbed_cases(found: Sequence[Judged]) -> set[Case]:
    """Those in which several contestants took longer than at the next larger size, and no other was measured."""
    makers: dict[Case, dict[str, bool]] = {}
    for each in found:
        if each.guideline is LARGER:
            case = makers.setdefault(each.row.case, {})
            case[name_of(each.row)] = case.get(name_of(each.row), False) or each.verdict == BROKEN
    return {case for case, broken in makers.items() if len(broken) > 1 and all(broken.values())}


def total_us(terms: Sequence[Term]) -> float:
    return sum(times * row.p50_us for row, times in terms)


def told(row: Row, terms: Sequence[Term]) -> bool:
    """Whether all have samples enough for an interval, and none that is wider than its median."""
    rows = [row, *(each for each, _ in terms)]
    return all(each.samples >= FEWEST_SAMPLES and not each.median_us.is_noisy for each in rows)


def reach(row: Row, terms: Sequence[Term], end: str) -> float:
    """How far the logarithm of the ratio reaches to this end of its 95 % interval."""
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
    """The p-value of a breach, not adjusted: half of a 95 % interval is ``Z`` standard errors."""
    if not told(row, terms):
        return 1.0
    over = math.log(row.p50_us / total_us(terms)) - math.log1p(LEAST)
    error = reach(row, terms, "low") / Z
    samples = min(each.samples for each in (row, *(each for each, _ in terms)))
    return tail(over / error, samples - 1) if error else float(over <= 0)


def term_text(row: Row, term: Term) -> str:
    """A call that takes the place of a row's, named by what differs from it."""
    other, times = term
    size = "" if abs(other.bytes - row.bytes) < grain(row) else f" of {format_bytes(other.bytes)}"
    name = "" if other.collective == row.collective else call_text(other)
    if times > 1:
        return f"{times} calls{size}"
    return f"{name}{size}".strip() if name else f"one{size}"


def call_text(row: Row) -> str:
    """What a program calls: MPI_Iallreduce, or all_reduce by ring."""
    who, name = contestant(row.algorithm), MPI_CALLS.get(row.collective)
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
    """What breaches have in common that are told in one line: the guideline, who breaks it, and how it was measured."""
    row = each.row
    return each.name, name_of(row), row.backend, row.placement, row.dtype, row.op, row.cadence, str(row.ranks)


def guideline_lines(found: Sequence[Judged]) -> list[str]:
    """Where guidelines are broken, the worst size and call of each; and how many are kept."""
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
    """Where else, and by which other calls of the same library."""
    sizes = sorted({each.row.bytes for each in same} - {worst.row.bytes})
    calls = dict.fromkeys(each.row.algorithm for each in same if each.row.algorithm != worst.row.algorithm)
    parts = [f"at {', '.join(map(format_bytes, sizes))}"] * bool(sizes) + [f"by {', '.join(calls)}"] * bool(calls)
    return f" (also {'; '.join(parts)})" if parts else ""


def show_guidelines(screen: Console, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Print the breaches and the count, as comments. Returns what ``--json`` has of all guidelines."""
    found = judged(rows)
    for line in guideline_lines(found):
        screen.print(f"# {line}", markup=False, soft_wrap=True)
    return [each.as_report() for each in found]
