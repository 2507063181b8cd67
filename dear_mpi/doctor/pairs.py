"""Links as people read them: a line for each pair of ranks, with both directions, inside hosts and between them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from dear_mpi.bench.machine_file import Link
from dear_mpi.reporting.terminal import PLUS_MINUS, interval
from dear_mpi.reporting.units import format_bytes, plural

INSIDE, BETWEEN = "inside hosts", "between hosts"


@dataclass(frozen=True)
class Measure:
    """What counts of a link, as a cost: the more, the worse. ``least`` is the better end of its 95 % interval."""

    cost: Callable[[Link], float]
    least: Callable[[Link], float]
    shown: Callable[[float], str]  # of a cost


MEASURES = {
    "latency": Measure(lambda row: row.latency_us, lambda row: row.latency_low_us, lambda us: f"{us:.1f} us"),
    "bandwidth": Measure(
        lambda row: 1 / row.GBps, lambda row: 1 / row.GBps_high, lambda cost: f"{1 / cost:.{places_of(1 / cost)}f} GB/s"
    ),
}


def kind_of(row: Link, hosts: Sequence[str]) -> str:
    return INSIDE if hosts[row.source] == hosts[row.dest] else BETWEEN


def by_kind(links: Sequence[Link], hosts: Sequence[str]) -> dict[str, list[Link]]:
    """The links inside hosts and those between them, where there are any."""
    kinds = {kind: [row for row in links if kind_of(row, hosts) == kind] for kind in (INSIDE, BETWEEN)}
    return {kind: rows for kind, rows in kinds.items() if rows}


@dataclass(frozen=True)
class PairLinks:
    """Both directions of a pair. ``slowdown``: the worst of latency and bandwidth, over the median of its kind."""

    forth: Link
    back: Link
    where: str
    slowdown: float

    @property
    def ranks(self) -> str:
        return f"{self.forth.source} - {self.forth.dest}"


def pairs_of(links: Sequence[Link], hosts: Sequence[str]) -> list[PairLinks]:
    """The pairs, in the order in which their first links are."""
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
    """
    >>> places_of(12.5), places_of(0.125)
    (2, 3)
    """
    return 2 if speed >= 1 else 3


def explained(links: Sequence[Link]) -> str:
    """What the figures are, for below a table."""
    first = links[0]
    latencies, speeds = (most_of(getattr(row, name) for row in links) for name in ("latency_samples", "samples"))
    return (
        f"latency: half the median of {latencies} round trips of {format_bytes(first.latency_bytes)}, which cannot "
        f"tell directions; GB/s ->: {plural(first.messages, 'message')} of {format_bytes(first.bytes)} from the first "
        f"rank to the second, until a short answer is back, the median of {speeds}; both at once: the bytes of both "
        f"directions; {PLUS_MINUS}"
    )


def most_of(counts: Iterable[int]) -> str:
    """
    >>> most_of([30, 30]), most_of([6, 30])
    ('30', '6 to 30')
    """
    least, *_, most = sorted([*(found := set(counts)), *found])
    return str(most) if least == most else f"{least} to {most}"
