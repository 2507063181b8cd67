"""Sum up many rows: our times over those of the better MPI library at each size, by classes of sizes."""

import statistics
from collections.abc import Sequence

from dear_mpi.bench.backends import BACKENDS
from dear_mpi.bench.case import Row
from dear_mpi.bench.other_mpi import OTHERS

__all__ = ["CLASSES", "NOT_OURS", "OURS", "against_mpi"]

CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
MPI = (*(name for name, entry in BACKENDS.items() if entry.maker == "MPI"), *OTHERS)
NOT_OURS = (*(name for name, entry in BACKENDS.items() if entry.maker != "ours"), *OTHERS)
OURS = "our best"


def against_mpi(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """For each of ours, and for the best of them: the geometric mean of its times over the better MPI's, per class.

    Rows are of one collective. One whose interval is wider than its median tells nothing, and is left out. None where a
    class has no size at which both were measured.
    """
    best: dict[int, float] = {}
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.ci_high_us - row.ci_low_us > row.p50_us:
            continue
        if row.algorithm in MPI:
            best[row.bytes] = min(row.p50_us, best.get(row.bytes, row.p50_us))
        elif row.algorithm not in NOT_OURS:
            for name in (row.algorithm, OURS):
                mine = times.setdefault(name, {})
                mine[row.bytes] = min(row.p50_us, mine.get(row.bytes, row.p50_us))
    if not best:
        return {}
    names = sorted(times, key=lambda name: name == OURS)
    if len(names) == 2:  # the only one of ours is the best of them
        names.remove(OURS)
    ratios = {name: {size: us / best[size] for size, us in times[name].items() if size in best} for name in names}
    return {name: [mean(per_size, *sizes) for sizes in CLASSES.values()] for name, per_size in ratios.items()}


def mean(ratios: dict[int, float], low: int, high: int) -> float | None:
    chosen = [ratio for size, ratio in ratios.items() if low <= size <= high]
    return statistics.geometric_mean(chosen) if chosen else None
