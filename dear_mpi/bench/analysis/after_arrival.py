"""Measure how late arrivals change each algorithm's time and which algorithm is the fastest.

Each algorithm's time after the last arrival is divided by the time of its balanced calls, measured and by the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from rich.console import Console

from dear_mpi.bench.backends import label, several_cuts
from dear_mpi.bench.case import job_us
from dear_mpi.bench.fit import MOST_TURNS
from dear_mpi.bench.machine_file import BALANCED, KIND, Row
from dear_mpi.bench.peers import figure, shown
from dear_mpi.bench.run import Report
from dear_mpi.reporting.stats import Median, in_batches
from dear_mpi.reporting.units import aligned, format_bytes, format_hosts, grouped

PLACE = (*(name for name in KIND if name != "arrival"), "bytes")
HEADS = ("algorithm", "balanced", "late", "late / balanced (95 %)", "balanced", "late", "late / balanced")
MEANING = (
    "late: us from the last arrival to the end on the slowest rank; model: by the fitted network, to which balanced "
    f"calls alone were fitted, the median over up to {MOST_TURNS} turns that differ in who is late; -: no program"
)


@dataclass(frozen=True)
class After:
    """An algorithm under an arrival pattern, and its balanced calls."""

    name: str
    row: Row
    balanced: Row

    @property
    def ratio(self) -> float:
        return self.row.p50_us / self.balanced.p50_us

    @cached_property
    def interval(self) -> Median | None:
        """Return the ratio with its interval; None for too few samples. Late and balanced calls took turns."""
        cut = in_batches([job_us(self.row), job_us(self.balanced)])
        return None if cut is None else cut[0].over(cut[1])

    @property
    def model(self) -> float | None:
        late_us, balanced_us = self.row.model_us, self.balanced.model_us
        return None if late_us is None or not balanced_us else late_us / balanced_us

    @property
    def cells(self) -> list[str]:
        model, told = "-" if self.model is None else f"{self.model:.2f}", self.interval
        interval = f"{told.low:.2f} to {told.high:.2f}" if told else "too few samples"
        return [
            *(self.name, figure(self.balanced.p50_us), figure(self.row.p50_us)),
            f"{self.ratio:.2f} ({interval})",
            *(figure(self.balanced.model_us), figure(self.row.model_us), model),
        ]

    def as_report(self) -> dict[str, Any]:
        return {
            "algorithm": self.name,
            "balanced_us": self.balanced.p50_us,
            "late_us": self.row.p50_us,
            "ratio": self.ratio,
            "ratio_low": self.interval and self.interval.low,
            "ratio_high": self.interval and self.interval.high,
            "model_balanced_us": self.balanced.model_us,
            "model_late_us": self.row.model_us,
            "model_ratio": self.model,
        }


@dataclass(frozen=True)
class Fastest:
    """The fastest algorithm of some rows, the ties with it, and the model's choice, by name."""

    arrival: str
    measured: str
    as_good: list[str]
    known: list[str]  # names with a model
    modelled: str | None  # the fastest of them by the model; None for fewer than two
    agree: bool | None  # whether that name is or ties with the fastest of them; None if all of them tie

    @classmethod
    def of(cls, rows: dict[str, Row]) -> "Fastest":
        known = {name: row for name, row in rows.items() if row.model_us is not None}
        first, *as_good = fastest(rows)
        arrival = next(iter(rows.values())).arrival
        if len(known) < 2:
            return cls(arrival, first, as_good, list(known), None, None)
        by_model, good = min(known, key=lambda name: known[name].model_us or 0.0), fastest(known)
        agree = by_model in good if len(good) < len(known) else None
        return cls(arrival, first, as_good, list(known), by_model, agree)

    @property
    def sentence(self) -> str:
        others = f" (or {', '.join(self.as_good)}: their intervals overlap)" if self.as_good else ""
        which = "balanced" if self.arrival == BALANCED else self.arrival
        known = ""
        if self.modelled is not None:
            said = {True: "which agrees", False: "which DIFFERS", None: "their times do not tell"}[self.agree]
            known = f"; by the model {self.modelled} of {', '.join(self.known)}: {said}"
        return f"fastest, {which}: {self.measured}{others}{known}"

    def as_report(self) -> dict[str, Any]:
        return {
            "arrival": self.arrival,
            "fastest": self.measured,
            "as_good": self.as_good,
            "model": self.modelled,
            "agree": self.agree,
        }


def fastest(rows: dict[str, Row]) -> list[str]:
    """Return the fastest row, then the rows whose interval overlaps its interval.

    Rows with wrong results count only if all results are wrong.
    """
    rows = {name: row for name, row in rows.items() if not row.wrong} or rows
    first = min(rows, key=lambda name: rows[name].p50_us)
    return [first, *(name for name in rows if name != first and rows[name].ci_low_us <= rows[first].ci_high_us)]


@dataclass(frozen=True)
class Arrived:
    """An arrival pattern in one case at one size."""

    asleep: bool
    after: Sequence[After]
    fastest: tuple[Fastest, Fastest]  # for balanced calls, and under the pattern

    def lines(self) -> Iterator[str]:
        row = self.after[0].row
        where = f"{row.collective} of {format_bytes(row.bytes)}, {format_hosts(row.hosts)}, {row.elements}"
        wait = "sleep until then: ranks share cores, so moments are less sharp" if self.asleep else "spin until then"
        yield f"arrival: {where}, {row.placement}: {row.arrival}, by up to {row.arrival_us:.1f} us; late ranks {wait}"
        above = ["", "", "", "measured (us)", "", "", "model (us)"]
        yield from aligned([above, HEADS, *(each.cells for each in self.after)])
        yield from (each.sentence for each in self.fastest)

    def as_report(self) -> dict[str, Any]:
        row = self.after[0].row
        return {
            **{name: getattr(row, name) for name in PLACE},
            "arrival": row.arrival,
            "arrival_us": row.arrival_us,
            "asleep": self.asleep,
            "algorithms": [each.as_report() for each in self.after],
            "fastest": [each.as_report() for each in self.fastest],
        }


def arrived(report: Report) -> list[Arrived]:
    """Collect each pattern in each case at each size."""
    found = []
    for same in grouped(shown(report.rows, report.names), attrgetter(*PLACE)).values():
        cuts = several_cuts(same)
        patterns = grouped(same, attrgetter("arrival"))
        for pattern, rows in patterns.items():
            if pattern != BALANCED:
                fast = [Fastest.of({label(row, cuts=cuts): row for row in each}) for each in (patterns[BALANCED], rows)]
                after = [After(label(row, cuts=cuts), row, balanced(row, report.rows)) for row in rows]
                found.append(Arrived(report.asleep, after, (fast[0], fast[1])))
    return found


def balanced(late: Row, rows: Sequence[Row]) -> Row:
    """Return the balanced calls of the same case; each run contains them."""
    same = attrgetter(*PLACE, "algorithm", "segment_bytes", "memory")
    return next(row for row in rows if row.is_balanced and same(row) == same(late))


def show_arrivals(screen: Console, report: Report) -> list[dict[str, Any]]:
    """Print the effect of late arrivals as comments. Returns its part of ``--json``."""
    found = arrived(report)
    for each in found:
        for line in each.lines():
            screen.print(f"# {line}".rstrip(), markup=False, soft_wrap=True)
        screen.print("#")
    if found:
        screen.print(f"# {MEANING}", markup=False, soft_wrap=True)
    return [each.as_report() for each in found]
