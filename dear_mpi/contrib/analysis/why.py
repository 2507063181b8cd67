"""Split an algorithm's time at one size into its causes, and name the one that makes it slower or faster than another.

    |  latency  |  bytes  |  combining  |  processor  |      the model: costs on its longest path
    |                measured                         | late | rest |

The model is ``cost`` on the fitted network. Late: the delay from the middle to the last rank's end, minus the model's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

from dear_mpi.bench.backends import candidate, labels
from dear_mpi.bench.fit import Fit, gradient, programs_of
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.run import Look, Report, merit
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.contrib.analysis.layouts import aligned
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.ranks.world import World
from dear_mpi.reporting.declared import parsed
from dear_mpi.reporting.units import format_bytes, format_hosts, grouped, parse_sizes, plural

APART = np.array((1.0, 1.7, 2.3, 3.1)) * 1e-6  # s; perturbs costs: no two paths are equally long
STEP = 1e-9  # relative, below APART, so that the path stays
UNKNOWN = 0.25  # of a time: a larger rest gives no reason
MOST_OPEN = 0.5  # of a difference, likewise
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
CASE_KEYS = ("collective", "bytes", "ranks", "dtype", "op", "placement", "cadence")


def rounded_bytes(nbytes: float) -> str:
    """
    >>> rounded_bytes(400_000), rounded_bytes(15_999_999), rounded_bytes(12)
    ('390 KiB', '15 MiB', '12 B')
    """
    factor, unit = next((factor, unit) for factor, unit in UNITS if nbytes >= factor or factor == 1)
    value = nbytes / factor
    return f"{round(value, 2 - math.ceil(math.log10(max(value, 1.1)))):g} {unit}"


def us(value: float) -> str:
    return f"{value:.0f} us" if abs(value) >= 10 else f"{value:.1f} us"


# The model's summands: counts and words.
PARTS: dict[str, tuple[str, Callable[[int], str]]] = {
    "latency_us": ("messages", lambda count: f"{plural(count, 'message')} after one another"),
    "bytes_us": ("nbytes", lambda count: f"{rounded_bytes(count)} on its longest path"),
    "combining_us": ("combined_nbytes", lambda count: f"{rounded_bytes(count)} to combine on its longest path"),
    "processor_us": ("handled", lambda count: f"{plural(count, 'message')} for a processor"),
}


@dataclass(frozen=True)
class Apart:
    """A row's time, split; ``spread_us``: from the middle rank's end to the last one's. Model: us and counts."""

    row: Row
    name: str
    model: Mapping[str, Any] | None
    spread_us: float | None  # None for calls in a row

    @property
    def time_us(self) -> float:
        return self.row.p50_us

    @property
    def model_us(self) -> float:
        return sum(self.model[name] for name in PARTS) if self.model else 0.0

    @property
    def late_us(self) -> float | None:
        if self.spread_us is None or self.model is None:
            return self.spread_us
        behind_us: float = self.spread_us - self.model["spread_us"]
        return max(0.0, min(behind_us, self.time_us - self.model_us))

    @property
    def rest_us(self) -> float | None:
        return None if self.model is None else self.time_us - self.model_us - (self.late_us or 0.0)

    @property
    def parts(self) -> dict[str, tuple[float, str]]:
        model = self.model or {}
        found = {name: (model.get(name, 0.0), words(model.get(count, 0))) for name, (count, words) in PARTS.items()}
        return found | {"late_us": (self.late_us or 0.0, f"a late rank, mostly rank {self.row.slow_rank}")}

    def part(self, name: str) -> str:
        time_us, words = self.parts[name]
        return f"{words} ({us(time_us)})"


@dataclass(frozen=True)
class Site:
    fit: Fit | None
    hosts: Sequence[int] = ()
    rates: Rates | None = None

    def apart(self, row: Row, name: str) -> Apart:
        model = None if self.fit is None else model_of(row, self.fit.network, self)
        return Apart(row, name, model, spread_us(row))


def model_of(row: Row, network: Network, site: Site) -> dict[str, Any] | None:
    """None if the row ran no program of messages."""
    written = programs_of(row, site.hosts, site.rates)
    if not written:
        return None
    costs = np.array((network.alpha, network.beta, network.gamma, network.o))
    counts = np.array(gradient(row, written, costs * (1 + APART), relative=STEP))
    done_s = cost(written, row.count, TYPES[row.dtype].itemsize, network).done_s  # by rank
    parts_us = costs * counts * 1e6
    total_us = float(parts_us.sum())
    # The path's sum differs only by the perturbation.
    parts_us *= max(done_s) * 1e6 / total_us if total_us else 0.0
    found: dict[str, Any] = dict(zip(PARTS, parts_us.tolist(), strict=True))
    found |= zip((count for count, _ in PARTS.values()), map(round, counts.tolist()), strict=True)
    return found | {"spread_us": behind_middle(np.array(done_s)) * 1e6}


def behind_middle(times: Array) -> float:
    """Return the delay from the middle rank to the last; of samples (columns) the median."""
    return float(np.median(times.max(axis=0) - np.median(times, axis=0)))


def spread_us(row: Row) -> float | None:
    if row.cadence != "isolated":
        return None
    if row.times_us is not None:
        return behind_middle(np.array(row.times_us))
    return row.mean_us - (row.rank_min_us + row.rank_max_us) / 2


def sentence(mine: Apart, others: Sequence[Apart]) -> str:
    at = f"At {format_bytes(mine.row.bytes)} {mine.name}"
    if not others:
        return f"{at} takes {us(mine.time_us)}: {alone(mine)}."
    other = min(others, key=lambda each: merit(each.row))
    name, time = f"{other.name} ({us(other.time_us)})", f"({us(mine.time_us)})"
    if mine.row.ci_low_us <= other.row.ci_high_us and other.row.ci_low_us <= mine.row.ci_high_us:
        return f"{at} {time} and {name} cannot be told apart: their intervals overlap. {mine.name}: {alone(mine)}."
    slower = mine.time_us > other.time_us
    compared = f"{at} {time} is {'slower' if slower else 'faster'} than {name}"
    if unknown := why_not_known(mine, other):
        return f"{compared}; the reason is unknown: {unknown}."
    return f"{compared}{reason(mine, other, slower=slower)}."


def why_not_known(mine: Apart, other: Apart) -> str:
    if mine.rest_us is None:
        return f"{mine.name} has no program of messages that could be priced"
    if other.rest_us is None:
        if abs(mine.rest_us) <= UNKNOWN * mine.time_us:
            return ""
        return f"model and late ranks explain {us(mine.time_us - mine.rest_us)} of {mine.name}, not {us(mine.time_us)}"
    difference_us, rest_us = mine.time_us - other.time_us, mine.rest_us - other.rest_us
    if abs(rest_us) <= MOST_OPEN * abs(difference_us):
        return ""
    told_us = math.copysign(1, difference_us) * (difference_us - rest_us)
    return f"model and late ranks explain a difference of {us(told_us)}, not {us(abs(difference_us))}"


def reason(mine: Apart, other: Apart, *, slower: bool) -> str:
    if other.model is None:
        bound_us = other.row.bound_us
        if bound_us is not None and other.time_us < (1 - UNKNOWN) * bound_us:
            return f": {alone(mine)}, and {other.name} takes less than messages on this network can"
        return f": {alone(mine)}; the parts of {other.name} are unknown"
    sign, theirs = 1 if slower else -1, other.parts
    more_us = {name: sign * (part_us - theirs[name][0]) for name, (part_us, _) in mine.parts.items()}
    most = max(more_us, key=more_us.__getitem__)
    if more_us[most] <= 0:
        return ", which is in no part of the model"
    return f" because it has {mine.part(most)}, and {other.name} {other.part(most)}"


def alone(mine: Apart) -> str:
    name = max(mine.parts, key=lambda name: mine.parts[name][0])
    part_us = mine.parts[name][0]
    if not part_us:
        return "it cannot be split"
    if mine.rest_us is not None and abs(mine.rest_us) > UNKNOWN * mine.time_us:
        return "the model does not explain it"
    known_us = mine.model_us + (mine.late_us or 0.0)  # exceeds the time if the rest is negative
    return f"{part_us / max(mine.time_us, known_us):.0%} of its time is {mine.part(name)}"


def of_interest(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the named rows of one case, and the library's fastest call."""
    calls = [row for row in rows if candidate(row.algorithm).is_library]
    fastest = min(calls, key=merit, default=None)
    return [row for row in rows if row.algorithm in names or row is fastest]


def explained(rows: Sequence[Row], names: Sequence[str], site: Site, asked: int) -> tuple[dict[str, Any], list[Apart]]:
    """Explain one case at the size nearest to ``asked`` bytes, for ``--json``; also return the split times."""
    size = min((row.bytes for row in rows), key=lambda each: abs(math.log((each or 1) / asked)))
    at = of_interest([row for row in rows if row.bytes == size], names)
    apart = [site.apart(row, name) for row, name in zip(at, labels(at), strict=True)]
    sentences = [
        sentence(each, [other for other in apart if other is not each])
        for each in apart
        if not candidate(each.row.algorithm).is_library
    ]
    parts = [
        {
            "algorithm": each.name,
            "time_us": each.time_us,
            "late_us": each.late_us,
            "spread_us": each.spread_us,
            "rest_us": each.rest_us,
            "least_us": each.row.bound_us,
            "model": each.model,
        }
        for each in apart
    ]
    case = {name: getattr(at[0], name) for name in CASE_KEYS}
    return {"asked_bytes": asked, **case, "parts": parts, "sentences": sentences}, apart


HEADS = (
    *("algorithm", "time", "latency (messages)", "bytes", "combining", "processor (messages)"),
    *("late", "rest", "least"),
)
MEANING = (
    "us: time, the median, is latency + bytes + combining + processor (of the model; in brackets how many of each are "
    "on its longest path) + late (the last rank after the middle one) + rest (in none of these); least: of any "
    "algorithm on the fitted network; -: not known"
)
UNTOLD = {"gamma": "combining is in bytes", "o": "processor is in latency"}


def cells(each: Apart) -> list[str]:
    found = [each.name, f"{each.time_us:.1f}"]
    for name, (count, _) in PARTS.items():
        model = each.model or {}
        counted = rounded_bytes(model.get(count, 0)) if "nbytes" in count else str(model.get(count, 0))
        found.append(f"{model[name]:.1f} ({counted})" if model else "-")
    return found + [
        "-" if value is None else f"{value:.1f}" for value in (each.late_us, each.rest_us, each.row.bound_us)
    ]


def show_case(screen: Console, found: Mapping[str, Any], apart: Sequence[Apart]) -> None:
    row = apart[0].row
    where = f"{row.collective} of {format_bytes(row.bytes)}, {format_hosts(row.hosts)}, {row.dtype}"
    lines = [f"why: {where}, {row.placement}, {row.cadence}", *aligned([HEADS, *map(cells, apart)])]
    for line in (*lines, *found["sentences"], ""):
        screen.print(line, soft_wrap=True)


def why(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    sizes = dict.fromkeys(parsed("--why", parse_sizes, flags["why"]))

    def look(world: World, suite: Suite, report: Report) -> Look:
        transport = world.transport

        def found() -> list[tuple[dict[str, Any], list[Apart]]]:
            site = Site(report.fit, transport.hosts, transport.rates)
            return [
                explained(rows, report.names, site, size)
                for size in sizes
                for rows in grouped(report.rows, lambda row: row.kind).values()
            ]

        cases = said_by_rank_0(transport, "--why", found, asleep=True)
        untold = [text for name, text in UNTOLD.items() if report.fit and name not in report.fit.told]
        return Look({"why": [data for data, _ in cases]}, partial(show, cases=cases, untold=untold))

    return look


def show(screen: Console, cases: Sequence[tuple[dict[str, Any], list[Apart]]], untold: Sequence[str]) -> None:
    for data, apart in cases:
        show_case(screen, data, apart)
    screen.print(MEANING, soft_wrap=True)
    if untold:
        screen.print(f"{'; '.join(untold)}: these rows cannot tell them apart", soft_wrap=True)
