"""Sum up many rows: times over the fastest call of an MPI library at each size, by classes of sizes."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dear_mpi.bench.case import Row
from dear_mpi.bench.contestants import BEST, contestant

CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
OURS = "our best"


def against_peers(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the fastest call of an MPI library at their size; the first contestant, where there is none."""
    cases = defaultdict[tuple[str, int], list[Row]](list)
    for row in rows:
        cases[row.collective, row.bytes].append(row)
    peers: dict[tuple[str, int], Row] = {}
    for case, same in cases.items():
        calls = [row for row in same if contestant(row.algorithm).is_library]
        peers[case] = min(calls, key=lambda row: row.p50_us, default=same[0])
    found = [(row, peers[row.collective, row.bytes]) for row in rows]
    return [replace(row, peer=peer.algorithm, over_peer=row.p50_us / peer.p50_us) for row, peer in found]


def all_calls(row: Row) -> str:
    """The name that stands for all calls of the library that made this row; the name of nobody, if none did."""
    return f"{contestant(row.algorithm).maker}{BEST}"


def shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of the contestants that were named; for a library's best call, its best row at each size."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = all_calls(row), row.bytes
        best[key] = min(best.get(key, row), row, key=lambda row: row.p50_us)
    fastest = [row for (name, _), row in best.items() if name in names]
    return [row for row in rows if row.algorithm in names or row in fastest]


def against_mpi(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """For each of ours, and for the best of them: the geometric mean of its times over its peers' times, per class.

    Rows are of one collective. A row whose interval is wider than its median tells nothing, nor does one whose peer has
    such an interval. A class counts only the sizes that tell something of every algorithm with a mean there. None where
    a class has no such size.
    """
    noisy = {(row.algorithm, row.bytes) for row in rows if row.ci_high_us - row.ci_low_us > row.p50_us}
    ratios: dict[str, dict[int, float]] = {}
    for row in rows:
        told = not noisy & {(row.algorithm, row.bytes), (row.peer, row.bytes)}
        if told and contestant(row.algorithm).maker == "ours" and contestant(row.peer).is_library:
            for name in (row.algorithm, OURS):
                mine = ratios.setdefault(name, {})
                mine[row.bytes] = min(row.over_peer, mine.get(row.bytes, row.over_peer))
    names = sorted(ratios, key=lambda name: name == OURS)
    if len(names) == 2:  # the only one of ours is the best of them
        names.remove(OURS)
    columns = [column([ratios[name] for name in names], *sizes) for sizes in CLASSES.values()]
    return {name: list(means) for name, *means in zip(names, *columns, strict=True)}


def column(ratios: Sequence[dict[int, float]], low: int, high: int) -> list[float | None]:
    """The means of all over the same sizes."""
    chosen = [{size: ratio for size, ratio in each.items() if low <= size <= high} for each in ratios]
    common = set[int]().union(*chosen).intersection(*filter(None, chosen))
    return [statistics.geometric_mean([each[size] for size in common]) if each and common else None for each in chosen]
