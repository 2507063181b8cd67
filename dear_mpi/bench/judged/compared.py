"""Rows side by side: which are shown, how ours stand to the fastest call of an MPI library, and which tell nothing."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import BEST, contestant
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.units import grouped

Case: TypeAlias = tuple[object, ...]
Mean: TypeAlias = float | str
"""A mean, or why there is none."""

CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
OURS = "our best"
NOISE, FAULTY, NO_SIZE, NOT_COMMON = "noise", "wrong", "no size", "no common size"


def is_noisy(row: Row) -> bool:
    """Whether the interval of its median is wider than the median: such a row tells nothing."""
    return row.median_us.is_noisy


def is_silent(row: Row) -> bool:
    """Whether its time tells nothing of how fast an algorithm is."""
    return is_noisy(row) or row.wrong > 0


def ratio_mark(row: Row) -> str:
    """A star, where the interval of its time over its peer's says that they differ."""
    low, high = row.over_peer_low, row.over_peer_high
    is_clear = low is not None and high is not None and (high < 1 or low > 1)
    return "*" * (is_clear and not is_noisy(row))


def merit(row: Row) -> tuple[bool, float]:
    """The least one is the best call: the fastest with right results, or if none has these the fastest one."""
    return row.wrong > 0, row.p50_us


def spread(row: Row) -> float | None:
    """Half of the interval of its median, in % of the median; None of too few samples for an interval."""
    return None if row.samples < FEWEST_SAMPLES else 50 * (row.ci_high_us - row.ci_low_us) / row.p50_us


def spread_text(row: Row, write: Callable[[float], str]) -> str:
    found = spread(row)
    return "-" if found is None else write(found)


def all_calls(row: Row) -> str:
    """The name that stands for all calls of the library that made this row; the name of nobody, if none did."""
    return f"{contestant(row.algorithm).maker}{BEST}"


def shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of the contestants that were named; for a library's best call, its best row of each case."""
    best: dict[tuple[str, Case], Row] = {}
    for row in rows:
        key = all_calls(row), row.case
        best[key] = min(best.get(key, row), row, key=merit)
    fastest = {id(row) for (name, _), row in best.items() if name in names}
    return [row for row in rows if row.algorithm in names or id(row) in fastest]


def against_mpi(rows: Sequence[Row]) -> dict[str, list[Mean]]:
    """For each of ours, and for the best of them: the geometric mean of its times over its peers' times, per class.

    A row that is noisy, or whose results are wrong, tells nothing, nor does one whose peer is so. A class counts only
    the cases that tell something of every algorithm with a mean there. Where it has no such case, a word says why.
    """
    silent = {(row.case, row.algorithm) for row in rows if is_silent(row)}
    ours: dict[str, list[Row]] = {}
    for row in rows:
        if contestant(row.algorithm).maker == "ours" and contestant(row.peer).is_library:
            for name in (row.algorithm, OURS):
                ours.setdefault(name, []).append(row)
    names = sorted(ours, key=lambda name: name == OURS)
    if len(names) == 2:  # the only one of ours is the best of them
        names.remove(OURS)

    def told(row: Row) -> bool:
        return not is_silent(row) and (row.case, row.peer) not in silent

    parts = (
        [[row for row in ours[name] if low <= row.bytes <= high] for name in names] for low, high in CLASSES.values()
    )
    columns = [column(part, told) for part in parts]
    return {name: list(means) for name, *means in zip(names, *columns, strict=True)}


def column(rows: Sequence[Sequence[Row]], told: Callable[[Row], bool]) -> list[Mean]:
    """For the rows of each algorithm the mean over the cases that all have which have any."""
    ratios = [least_ratios(filter(told, mine)) for mine in rows]
    some = [set(mine) for mine in ratios if mine]
    common = set.intersection(*some) if some else set()

    def mean(mine: dict[Case, float], measured: Sequence[Row]) -> Mean:
        if mine and common:
            return statistics.geometric_mean([mine[case] for case in common])
        if mine or not measured:
            return NOT_COMMON if mine else NO_SIZE
        return FAULTY if all(row.wrong for row in measured) else NOISE

    return [mean(mine, measured) for mine, measured in zip(ratios, rows, strict=True)]


def least_ratios(rows: Iterable[Row]) -> dict[Case, float]:
    """In each case the least time over the peer's."""
    return {case: min(row.over_peer for row in same) for case, same in grouped(rows, lambda row: row.case).items()}


def figure(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"


def mean_text(mean: Mean) -> str:
    """
    >>> mean_text(1.234), mean_text("noise")
    ('1.23', 'noise')
    """
    return mean if isinstance(mean, str) else f"{mean:.2f}"
