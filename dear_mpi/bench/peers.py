"""Compare rows with the fastest MPI call: ratios with intervals, sentences, and means of ratios.

The fastest of many similar calls may have been lucky. So all calls that are not clearly slower than it are rivals. A
ratio's upper end is the highest upper end over the rivals. Its lower end is the highest lower end of widened intervals,
so that the chance of any too high end is 2.5 % (Bonferroni). ``reporting/stats.py`` explains single intervals.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from dear_mpi.bench.backends import BEST, LIBRARY, candidate, labels
from dear_mpi.bench.case import job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.reporting.stats import FEWEST_SAMPLES, in_batches
from dear_mpi.reporting.units import format_bytes, grouped

Case: TypeAlias = tuple[object, ...]
Mean: TypeAlias = float | str
"""A mean, or why there is none."""

CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
OURS = "our best"
NOISE, FAULTY, NO_SIZE, NOT_COMMON = "noise", "wrong", "no size", "no common size"
LEAST = 0.03  # the least important difference


def against_peers(rows: Sequence[Row]) -> list[Row]:
    """Add each row's peer: the fastest MPI call in its case, or the first candidate without MPI."""
    found = dict[int, Row]()
    for places in grouped(range(len(rows)), lambda place: rows[place].case).values():
        found |= zip(places, in_one_case([rows[place] for place in places]), strict=True)
    return [found[place] for place in range(len(rows))]


def in_one_case(rows: Sequence[Row]) -> list[Row]:
    calls = [place for place, row in enumerate(rows) if candidate(row.algorithm).is_library] or [0]
    calls = [place for place in calls if not rows[place].wrong] or calls  # wrong calls may be fast
    best = min(calls, key=lambda place: rows[place].p50_us)
    peer, found = rows[best], list[Row]()
    cut = in_batches([job_us(row) for row in rows])
    rivals = [call for call in calls if call == best or (cut and cut[call].over(cut[best]).low <= 1)]
    for place, row in enumerate(rows):
        low, high = (1.0, 1.0) if place == best else (None, None)
        if place != best and cut:
            others = [cut[each] for each in rivals if each != place]
            ratios = [cut[place].over(each, len(others)) for each in others]
            low, high = max(each.low for each in ratios), max(each.high for each in ratios)
        over = row.p50_us / peer.p50_us
        found.append(replace(row, peer=peer.algorithm, over_peer=over, over_peer_low=low, over_peer_high=high))
    return found


def is_noisy(row: Row) -> bool:
    """Return whether the interval of the median is wider than the median; the row is then useless."""
    return row.median_us.is_noisy


def ratio_mark(row: Row) -> str:
    """Return a star if the interval of the time over the peer's excludes 1."""
    low, high = row.over_peer_low, row.over_peer_high
    is_clear = low is not None and high is not None and (high < 1 or low > 1)
    return "*" * (is_clear and not is_noisy(row))


def merit(row: Row) -> tuple[bool, float]:
    """Return a sort key: right results first, then the fastest."""
    return row.wrong > 0, row.p50_us


def spread(row: Row) -> float | None:
    """Return half of the median's interval, in % of the median; None for too few samples."""
    return None if row.samples < FEWEST_SAMPLES else 50 * (row.ci_high_us - row.ci_low_us) / row.p50_us


def shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows of the named candidates; ``native-best`` stands for MPI's best row in each case."""
    best: dict[Case, Row] = {}
    for row in rows if LIBRARY + BEST in names else ():
        if candidate(row.algorithm).is_library:
            best[row.case] = min(best.get(row.case, row), row, key=merit)
    fastest = set(map(id, best.values()))
    return [row for row in rows if row.algorithm in names or id(row) in fastest]


def against_mpi(rows: Sequence[Row]) -> dict[str, list[Mean]]:
    """Return geometric means of times over peers' times, by size class and algorithm.

    There is a mean for each of our algorithms and for the best of them. Rows that are noisy or wrong, or have such
    peers, do not count. A class counts only cases that are known for every algorithm with a mean there. Without such a
    case, a word gives the reason.
    """
    silent = {(row.case, row.algorithm) for row in rows if is_noisy(row) or row.wrong}
    ours: dict[str, list[Row]] = {}
    for row in rows:
        if candidate(row.algorithm).maker == "ours" and candidate(row.peer).is_library:
            for name in (row.algorithm, OURS):
                ours.setdefault(name, []).append(row)
    names = sorted(ours, key=lambda name: name == OURS)
    if len(names) == 2:  # a single algorithm is also the best
        names.remove(OURS)
    found: dict[str, list[Mean]] = {name: [] for name in names}
    for low, high in CLASSES.values():
        inside = {name: [row for row in ours[name] if low <= row.bytes <= high] for name in names}
        ratios = {name: dict[Case, float]() for name in names}  # the least in each case
        for name in names:
            for row in inside[name]:
                if not silent & {(row.case, row.algorithm), (row.case, row.peer)}:
                    ratios[name][row.case] = min(row.over_peer, ratios[name].get(row.case, row.over_peer))
        some = [set(mine) for mine in ratios.values() if mine]
        common = set.intersection(*some) if some else set()
        for name, mine in ratios.items():
            if mine and common:
                found[name].append(statistics.geometric_mean([mine[case] for case in common]))
            elif mine or not inside[name]:
                found[name].append(NOT_COMMON if mine else NO_SIZE)
            else:
                found[name].append(FAULTY if all(row.wrong for row in inside[name]) else NOISE)
    return found


def mean_text(mean: Mean) -> str:
    return mean if isinstance(mean, str) else f"{mean:.2f}"


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Return a sentence for each row but the peers, in ascending order of sizes."""
    named = list(zip(rows, labels(rows), strict=True))
    peers = {row.case: name for row, name in named if is_peer(row)}
    for row, name in sorted(named, key=lambda each: each[0].bytes):
        if not is_peer(row):
            yield verdict(row, name, peers.get(row.case, row.peer))


def is_peer(row: Row) -> bool:
    return (row.over_peer_low, row.over_peer_high) == (1, 1)


def verdict(row: Row, name: str, peer: str) -> str:
    low, high, at = row.over_peer_low, row.over_peer_high, f"{peer} at {format_bytes(row.bytes)}"
    unknown = f"{name} or {at}: cannot tell"
    if row.wrong:
        return f"{unknown}: the results of {name} are wrong"
    if low is None or high is None:
        return f"{unknown}: too few samples for an interval, {row.samples}"
    if is_noisy(row):
        return f"{unknown}: the interval of {name} is wider than its median"
    if high < 1:
        return f"{name} is faster by {percent(1 / row.over_peer, 1 / high, 1 / low)} than {at}"
    if low > 1:
        return f"{name} is slower by {percent(row.over_peer, low, high)} than {at}"
    interval = f"the interval is {low:.3f} to {high:.3f}"
    if low >= 1 / (1 + LEAST) and high <= 1 + LEAST:
        return f"{name} takes as long as {at}, within {LEAST:.0%}: {interval}"
    return f"{unknown}: {interval}"


def percent(ratio: float, low: float, high: float) -> str:
    """Format a ratio's difference from 1, with its interval.

    >>> percent(1.0312, 1.02, 1.044), percent(12.0, 11.0, 14.0)
    ('3.1 % (2.0 to 4.4 %)', '1100 % (1000 to 1300 %)')
    """
    most, *ends = (f"{100 * each - 100:{'.1f' if high < 2 else '.0f'}}" for each in (ratio, low, high))
    return f"{most} % ({' to '.join(ends)} %)"
