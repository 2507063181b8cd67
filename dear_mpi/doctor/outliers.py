"""Which hosts, ranks and links are slow beside the others of their kind: a slow rank is named once, not in each pair.

A host or a rank with several links is slow if its best one is ``FACTOR`` times worse than the median of the others'
best: then all of its links are. Single links are compared with those that are left. The whole 95 % interval must be
beyond.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TypeVar

from dear_mpi.bench.machine_file import Link
from dear_mpi.doctor.finding import SEVERITIES, Finding, note, warning
from dear_mpi.doctor.pairs import BETWEEN, INSIDE, MEASURES, by_kind
from dear_mpi.reporting.groups import grouped
from dear_mpi.reporting.units import plural

T = TypeVar("T", bound=Hashable)

FACTOR = 1.5
FEWEST = 3  # of two, nobody knows which is the slow one
ADVICE = {
    INSIDE: "look at what else runs on its cores, and where these are: lscpu, numactl --hardware",
    BETWEEN: "look at its card, its cable and its port of the switch: ethtool -S, ibstat; and at what else uses them",
}


@dataclass(frozen=True)
class Slow:
    """A host or a rank: the ``cost`` of its best link, and what is ``usual`` of others."""

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
    """Hosts and ranks that stand out, then single links, the worst first. ``links``: both directions of each pair."""
    found = [
        each
        for kind, rows in by_kind(links, hosts).items()
        for name in MEASURES
        for each in of_kind(rows, hosts, kind, name)
    ]
    found.sort(key=lambda each: (SEVERITIES.index(each[1].severity), -round(each[0], 3)))
    return [finding for _, finding in found]


def of_kind(rows: Sequence[Link], hosts: Sequence[str], kind: str, name: str) -> Iterator[tuple[float, Finding]]:
    """Each with how many times worse it is than usual."""
    slow_hosts = slow_ends(rows, hosts, name) if kind == BETWEEN else {}
    for host, slow in slow_hosts.items():
        yield slow.factor, warning(slow_end(f"host {host}", slow, kind, name), ADVICE[kind])
    rows = [row for row in rows if not {hosts[row.source], hosts[row.dest]} & {*slow_hosts}]
    slow_ranks = slow_ends(rows, range(len(hosts)), name)
    for rank, slow in slow_ranks.items():
        yield slow.factor, warning(slow_end(f"rank {rank} (host {hosts[rank]})", slow, kind, name), ADVICE[kind])
    yield from slow_links([row for row in rows if not {row.source, row.dest} & {*slow_ranks}], kind, name)


def slow_ends(rows: Sequence[Link], names: Sequence[T], name: str) -> dict[T, Slow]:
    """The slow ones, by the name of each rank's host or its own."""
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
        slow = [row for row in slow if row.source < row.dest]  # both directions have one latency
    if slow:
        worst = max(slow, key=measure.cost)
        where = f"between ranks {worst.source} and {worst.dest}"
        if name == "bandwidth":
            where = f"from rank {worst.source} to rank {worst.dest}"
        more = f"; and {plural(len(slow) - 1, 'more link')}" if len(slow) > 1 else ""
        figures = f"{measure.shown(measure.cost(worst))}, {measure.shown(usual)} is usual"
        finding = note(f"{name} {kind} is worst {where}: {figures}{more}", ADVICE[kind])
        yield measure.cost(worst) / usual, finding
