"""Summarise links: a line for each pair of ranks, inside hosts and between them, and outliers.

A host or rank with several links is slow, and named once, if its best link is ``FACTOR`` times worse than the median of
the others' best; single links are compared with the rest. The whole 95 % interval must exceed the factor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median, median_low
from typing import Any, TypeAlias

from dear_mpi.bench.machine_file import Link
from dear_mpi.contrib.doctor.findings import SEVERITIES, Finding, note, warning
from dear_mpi.reporting.terminal import PLUS_MINUS, interval
from dear_mpi.reporting.units import format_bytes, grouped, plural

Ways: TypeAlias = dict[str, tuple[float, float]]
INSIDE, BETWEEN = "inside hosts", "between hosts"
FACTOR = 1.5
FEWEST = 3  # two cannot show the slow one
ADVICE = {
    INSIDE: "look at what else runs on its cores, and where these are: lscpu, numactl --hardware",
    BETWEEN: "look at its card, its cable and its port of the switch: ethtool -S, ibstat; and at what else uses them",
}


@dataclass(frozen=True)
class Measure:
    """A link's measure as a cost. ``least``: the better end of its 95 % interval."""

    cost: Callable[[Link], float]
    least: Callable[[Link], float]
    shown: Callable[[float], str]  # formats a cost


MEASURES = {
    "latency": Measure(lambda row: row.latency_us, lambda row: row.latency_low_us, lambda us: f"{us:.1f} us"),
    "bandwidth": Measure(
        lambda row: 1 / row.GBps, lambda row: 1 / row.GBps_high, lambda cost: f"{1 / cost:.{places_of(1 / cost)}f} GB/s"
    ),
}


def by_kind(links: Sequence[Link], hosts: Sequence[str]) -> dict[str, list[Link]]:
    kinds = grouped(links, lambda row: INSIDE if hosts[row.source] == hosts[row.dest] else BETWEEN)
    return {kind: kinds[kind] for kind in (INSIDE, BETWEEN) if kind in kinds}


@dataclass(frozen=True)
class PairLinks:
    """Both directions of a pair. ``slowdown``: the worst of latency and bandwidth, over its kind's median."""

    forth: Link
    back: Link
    where: str
    slowdown: float


def pairs_of(links: Sequence[Link], hosts: Sequence[str]) -> list[PairLinks]:
    pairs = []
    for rows in by_kind(links, hosts).values():
        usual = {name: median(map(measure.cost, rows)) for name, measure in MEASURES.items()}
        for forth, back in grouped(rows, lambda row: (frozenset((row.source, row.dest)), row.path)).values():
            slow = max(measure.cost(row) / usual[name] for row in (forth, back) for name, measure in MEASURES.items())
            ends = dict.fromkeys((hosts[forth.source], hosts[forth.dest]))
            pairs.append(PairLinks(forth, back, " - ".join(ends), slow))
    return pairs


def speed(row: Link) -> str:
    return interval(row.GBps, row.GBps_low, row.GBps_high, 1, places_of(row.GBps))


PAIR_COLUMNS: dict[str, Callable[[PairLinks], str]] = {
    "ranks": lambda pair: f"{pair.forth.source} - {pair.forth.dest}",
    "memory": lambda pair: pair.forth.path,
    "latency (us)": lambda pair: interval(
        pair.forth.latency_us, pair.forth.latency_low_us, pair.forth.latency_high_us, 1, 1
    ),
    "GB/s ->": lambda pair: speed(pair.forth),
    "GB/s <-": lambda pair: speed(pair.back),
}


def places_of(speed: float) -> int:
    """
    >>> places_of(12.5), places_of(0.125)
    (2, 3)
    """
    return 2 if speed >= 1 else 3


def explained(links: Sequence[Link]) -> str:
    first = links[0]
    latencies, speeds = (most_of(getattr(row, name) for row in links) for name in ("latency_samples", "samples"))
    return (
        f"latency: half the median of {latencies} round trips of {format_bytes(first.latency_bytes)}, which cannot "
        f"tell directions; GB/s ->: {plural(first.messages, 'message')} of {format_bytes(first.bytes)} from the first "
        f"rank to the second, until a short answer is back, the median of {speeds}; {PLUS_MINUS}"
    )


def most_of(counts: Iterable[int]) -> str:
    """
    >>> most_of([30, 30]), most_of([6, 30])
    ('30', '6 to 30')
    """
    ends = sorted(counts)
    return " to ".join(map(str, dict.fromkeys((ends[0], ends[-1]))))


def outliers(links: Sequence[Link], hosts: Sequence[str]) -> list[Finding]:
    """Return outlying hosts and ranks, then single links, the worst first. ``links``: both directions of each pair."""
    found = list[tuple[float, Finding]]()
    for kind, rows in by_kind(links, hosts).items():
        for name, measure in MEASURES.items():
            left = rows
            for what in ("host", "rank")[kind == INSIDE :]:
                names = hosts if what == "host" else range(len(hosts))
                slow = slow_ends(left, names, measure)
                for end, ways in slow.items():
                    cost, usual = min(ways.values())
                    who = f"host {end}" if what == "host" else f"rank {end} (host {hosts[end]})"
                    verb = f"{' and '.join(ways)} slowly {kind}: "
                    if name == "latency":
                        verb = f"is slow to answer {kind}: a latency of "
                    text = f"{who} {verb}{measure.shown(cost)} at best, {measure.shown(usual)} is usual"
                    found.append((cost / usual, warning(text, ADVICE[kind])))
                left = [row for row in left if not {names[row.source], names[row.dest]} & {*slow}]
            found += slow_links(left, kind, name)
    found.sort(key=lambda each: (SEVERITIES.index(each[1].severity), -round(each[0], 3)))
    return [finding for _, finding in found]


def slow_ends(rows: Sequence[Link], names: Sequence[Any], measure: Measure) -> dict[Any, Ways]:
    """Return slow ends (``names``: hosts or ranks), their best and the usual cost as a sender and as a receiver."""
    found: dict[Any, Ways] = {}
    for way, end in (("sends", "source"), ("receives", "dest")):
        groups = grouped(rows, lambda row, end=end: names[getattr(row, end)])  # type: ignore[misc]
        best = {each: min(map(measure.cost, group)) for each, group in groups.items()}
        usual = median_low(best.values()) if len(best) >= FEWEST else inf
        for each, group in groups.items():
            if len(group) > 1 and min(map(measure.least, group)) > FACTOR * usual:
                found.setdefault(each, {})[way] = best[each], usual
    return found


def slow_links(rows: Sequence[Link], kind: str, name: str) -> Iterator[tuple[float, Finding]]:
    measure = MEASURES[name]
    usual = median_low(map(measure.cost, rows)) if rows else 0.0
    slow = [row for row in rows if measure.least(row) > FACTOR * usual]
    if name == "latency":
        slow = [row for row in slow if row.source < row.dest]
    if slow:
        worst = max(slow, key=measure.cost)
        ways = {"latency": "between ranks {} and {}", "bandwidth": "from rank {} to rank {}"}
        where = ways[name].format(worst.source, worst.dest)
        more = f"; and {plural(len(slow) - 1, 'more link')}" if len(slow) > 1 else ""
        figures = f"{measure.shown(measure.cost(worst))}, {measure.shown(usual)} is usual"
        finding = note(f"{name} {kind} is worst {where}: {figures}{more}", ADVICE[kind])
        yield measure.cost(worst) / usual, finding
