"""Summarise links: a line for each pair of ranks, inside hosts and between them, and outliers.

A slow rank is named once, not in each pair: a host or a rank with several links is slow if its best link is ``FACTOR``
times worse than the median of the others' best. Single links are compared with the remaining ones. The whole 95 %
interval must exceed the factor.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import TypeVar

from dear_mpi.bench.machine_file import Link
from dear_mpi.doctor.findings import SEVERITIES, Finding, note, warning
from dear_mpi.reporting.terminal import PLUS_MINUS, interval
from dear_mpi.reporting.units import format_bytes, grouped, plural

INSIDE, BETWEEN = "inside hosts", "between hosts"


@dataclass(frozen=True)
class Measure:
    """A link's measure as a cost: higher is worse. ``least`` is the better end of its 95 % interval."""

    cost: Callable[[Link], float]
    least: Callable[[Link], float]
    shown: Callable[[float], str]  # formats a cost


MEASURES = {
    "latency": Measure(lambda row: row.latency_us, lambda row: row.latency_low_us, lambda us: f"{us:.1f} us"),
    "bandwidth": Measure(
        lambda row: 1 / row.GBps, lambda row: 1 / row.GBps_high, lambda cost: f"{1 / cost:.{places_of(1 / cost)}f} GB/s"
    ),
}


def kind_of(row: Link, hosts: Sequence[str]) -> str:
    return INSIDE if hosts[row.source] == hosts[row.dest] else BETWEEN


def by_kind(links: Sequence[Link], hosts: Sequence[str]) -> dict[str, list[Link]]:
    """Return the links inside hosts and between hosts, if there are any."""
    kinds = {kind: [row for row in links if kind_of(row, hosts) == kind] for kind in (INSIDE, BETWEEN)}
    return {kind: rows for kind, rows in kinds.items() if rows}


@dataclass(frozen=True)
class PairLinks:
    """Both directions of a pair. ``slowdown``: the worst of latency and bandwidth, over its kind's median."""

    forth: Link
    back: Link
    where: str
    slowdown: float

    @property
    def ranks(self) -> str:
        return f"{self.forth.source} - {self.forth.dest}"


def pairs_of(links: Sequence[Link], hosts: Sequence[str]) -> list[PairLinks]:
    """Return the pairs, in the order of their first links."""
    usual = {
        (kind, name): median(map(measure.cost, rows))
        for kind, rows in by_kind(links, hosts).items()
        for name, measure in MEASURES.items()
    }
    back = {(row.dest, row.source, row.path): row for row in links}
    pairs, seen = [], set[tuple[int, int, str]]()
    for forth in links:
        if (forth.source, forth.dest, forth.path) in seen:
            continue
        both = forth, back[forth.source, forth.dest, forth.path]
        seen |= {(row.source, row.dest, row.path) for row in both}
        kind, ends = kind_of(forth, hosts), (hosts[forth.source], hosts[forth.dest])
        slow = max(measure.cost(row) / usual[kind, name] for row in both for name, measure in MEASURES.items())
        pairs.append(PairLinks(*both, ends[0] if kind == INSIDE else " - ".join(ends), slow))
    return pairs


def latency_us(row: Link) -> str:
    return interval(row.latency_us, row.latency_low_us, row.latency_high_us, 1, 1)


def speed(row: Link) -> str:
    return interval(row.GBps, row.GBps_low, row.GBps_high, 1, places_of(row.GBps))


def both(row: Link) -> str:
    if row.both_GBps is None or row.both_GBps_low is None or row.both_GBps_high is None:
        return "-"
    return interval(row.both_GBps, row.both_GBps_low, row.both_GBps_high, 1, places_of(row.both_GBps))


PAIR_COLUMNS: dict[str, Callable[[PairLinks], str]] = {
    "ranks": lambda pair: pair.ranks,
    "memory": lambda pair: pair.forth.path,
    "latency (us)": lambda pair: latency_us(pair.forth),
    "GB/s ->": lambda pair: speed(pair.forth),
    "GB/s <-": lambda pair: speed(pair.back),
    "both at once": lambda pair: both(pair.forth),
}


def places_of(speed: float) -> int:
    """Return the decimals for a speed.

    >>> places_of(12.5), places_of(0.125)
    (2, 3)
    """
    return 2 if speed >= 1 else 3


def explained(links: Sequence[Link]) -> str:
    """Explain the figures, for a note below the table."""
    first = links[0]
    latencies, speeds = (most_of(getattr(row, name) for row in links) for name in ("latency_samples", "samples"))
    return (
        f"latency: half the median of {latencies} round trips of {format_bytes(first.latency_bytes)}, which cannot "
        f"tell directions; GB/s ->: {plural(first.messages, 'message')} of {format_bytes(first.bytes)} from the first "
        f"rank to the second, until a short answer is back, the median of {speeds}; both at once: the bytes of both "
        f"directions; {PLUS_MINUS}"
    )


def most_of(counts: Iterable[int]) -> str:
    """Format a count, or the range of counts.

    >>> most_of([30, 30]), most_of([6, 30])
    ('30', '6 to 30')
    """
    least, *_, most = sorted([*(found := set(counts)), *found])
    return str(most) if least == most else f"{least} to {most}"


T = TypeVar("T", bound=Hashable)

FACTOR = 1.5
FEWEST = 3  # two cannot show the slow one
ADVICE = {
    INSIDE: "look at what else runs on its cores, and where these are: lscpu, numactl --hardware",
    BETWEEN: "look at its card, its cable and its port of the switch: ethtool -S, ibstat; and at what else uses them",
}


@dataclass(frozen=True)
class Slow:
    """A slow host or rank: the ``cost`` of its best link, and the ``usual`` cost of others."""

    cost: float
    usual: float
    sends: bool
    receives: bool

    @property
    def factor(self) -> float:
        return self.cost / self.usual

    @property
    def verb(self) -> str:
        return " and ".join(["sends"] * self.sends + ["receives"] * self.receives)


def outliers(links: Sequence[Link], hosts: Sequence[str]) -> list[Finding]:
    """Return outlying hosts and ranks, then single links, the worst first. ``links``: both directions of each pair."""
    found = [
        each
        for kind, rows in by_kind(links, hosts).items()
        for name in MEASURES
        for each in of_kind(rows, hosts, kind, name)
    ]
    found.sort(key=lambda each: (SEVERITIES.index(each[1].severity), -round(each[0], 3)))
    return [finding for _, finding in found]


def of_kind(rows: Sequence[Link], hosts: Sequence[str], kind: str, name: str) -> Iterator[tuple[float, Finding]]:
    """Return outliers of one kind, each with its factor over the usual cost."""
    slow_hosts = slow_ends(rows, hosts, name) if kind == BETWEEN else {}
    for host, slow in slow_hosts.items():
        yield slow.factor, warning(slow_end(f"host {host}", slow, kind, name), ADVICE[kind])
    rows = [row for row in rows if not {hosts[row.source], hosts[row.dest]} & {*slow_hosts}]
    slow_ranks = slow_ends(rows, range(len(hosts)), name)
    for rank, slow in slow_ranks.items():
        yield slow.factor, warning(slow_end(f"rank {rank} (host {hosts[rank]})", slow, kind, name), ADVICE[kind])
    yield from slow_links([row for row in rows if not {row.source, row.dest} & {*slow_ranks}], kind, name)


def slow_ends(rows: Sequence[Link], names: Sequence[T], name: str) -> dict[T, Slow]:
    """Return slow ends; ``names`` has each rank's host, or the rank."""
    measure, ways = MEASURES[name], list[dict[T, tuple[float, float]]]()
    ends: Sequence[Callable[[Link], int]] = (lambda row: row.source, lambda row: row.dest)
    for end in ends:
        groups = grouped(rows, lambda row, end=end: names[end(row)])  # type: ignore[misc]
        best = {each: min(map(measure.cost, group)) for each, group in groups.items()}
        usual = median_low(best.values()) if len(best) >= FEWEST else float("inf")
        least = {each: min(map(measure.least, group)) for each, group in groups.items()}
        several = [each for each, group in groups.items() if len(group) > 1]
        ways.append({each: (best[each], usual) for each in several if least[each] > FACTOR * usual})
    sends, receives = ways
    return {
        each: Slow(*min(way[each] for way in ways if each in way), each in sends, each in receives)
        for each in sends | receives
    }


def slow_end(who: str, slow: Slow, kind: str, name: str) -> str:
    best, usual = map(MEASURES[name].shown, (slow.cost, slow.usual))
    if name == "latency":
        return f"{who} is slow to answer {kind}: a latency of {best} at best, {usual} is usual"
    return f"{who} {slow.verb} slowly {kind}: {best} at best, {usual} is usual"


def slow_links(rows: Sequence[Link], kind: str, name: str) -> Iterator[tuple[float, Finding]]:
    measure = MEASURES[name]
    usual = median_low(map(measure.cost, rows)) if rows else 0.0
    slow = [row for row in rows if measure.least(row) > FACTOR * usual]
    if name == "latency":
        slow = [row for row in slow if row.source < row.dest]  # both directions share one latency
    if slow:
        worst = max(slow, key=measure.cost)
        where = f"between ranks {worst.source} and {worst.dest}"
        if name == "bandwidth":
            where = f"from rank {worst.source} to rank {worst.dest}"
        more = f"; and {plural(len(slow) - 1, 'more link')}" if len(slow) > 1 else ""
        figures = f"{measure.shown(measure.cost(worst))}, {measure.shown(usual)} is usual"
        finding = note(f"{name} {kind} is worst {where}: {figures}{more}", ADVICE[kind])
        yield measure.cost(worst) / usual, finding
