"""Convert measured rows to rules of ``auto``: the fastest of our algorithms at each size.

If others are within its interval, the next smaller size's algorithm is preferred, then the first named. Some ranks and
buffers cannot use shared memory, so a shared-memory algorithm that is fastest overall gets an additional rule.
"""

import math
import os
import platform
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean

from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.algorithms.registry import is_installed, runner_of
from dear_mpi.collectives.plans.tuning import Rule, read_rules, write_rules
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.ranks.world import World
from dear_mpi.reporting.files import check_writable, replacing
from dear_mpi.reporting.units import grouped


def may_be_chosen(name: str) -> bool:
    """Return whether ``auto`` may choose an algorithm. User algorithms are excluded: a table of rules has no code."""
    return is_installed(name) and runner_of(name) == "messages"


def tuned(rows: Sequence[Row]) -> list[Rule]:
    """Return the rules for these rows' collectives and numbers of ranks."""
    groups = grouped((row for row in rows if not row.wrong), lambda row: (row.collective, row.ranks))
    return [rule for group in groups.values() for rule in of_collective(group)]


def of_collective(rows: list[Row]) -> list[Rule]:
    """Return one collective's rules on one number of ranks. Borders are geometric means of two sizes."""
    ours = sorted((row for row in rows if may_be_chosen(row.algorithm)), key=lambda row: row.bytes)
    if not ours:
        return []
    best: list[Row] = []
    for group in grouped(ours, lambda row: row.bytes).values():
        best.append(chosen_row(group, best[-1] if best else None))
    borders = [(row, math.isqrt(row.bytes * later.bytes)) for row, later in pairwise(best) if key(row) != key(later)]
    shared = {row.bytes: row for row in rows if runner_of(row.algorithm) == "shared"}
    ratios = [shared[row.bytes].p50_us / row.p50_us for row in best if row.bytes in shared]
    faster = [next(iter(shared.values()))] if ratios and geometric_mean(ratios) < 1 else []
    return [
        Rule(row.collective, row.ranks, border, row.algorithm, row.segment_bytes)
        for row, border in [*borders, (best[-1], None), *((row, None) for row in faster)]
    ]


def key(row: Row) -> tuple[str, int]:
    return row.algorithm, row.segment_bytes


def chosen_row(rows: list[Row], below: Row | None) -> Row:
    """Return the row that ``auto`` takes at one size, given the next smaller size's row."""
    best = min(rows, key=lambda row: row.p50_us)
    as_good = [row for row in rows if row.p50_us <= best.ci_high_us]
    return next((row for row in as_good if below is not None and key(row) == key(below)), as_good[0])


def rules_before(path: Path, suite: Suite, world: World) -> tuple[Rule, ...]:
    """Collective: return the file's existing rules, before a run.

    Raises:
        ArgumentError: it is no table of rules or not writable, no algorithm can be chosen, or the run has several
            dtypes, ops or placements.
    """

    def read() -> tuple[Rule, ...]:
        if not any(map(may_be_chosen, suite.names)):
            names = ", ".join(suite.names)
            raise ValueError(f"algorithms must name some that auto may pick, such as ring, not {names}")
        for name in ("dtypes", "ops", "placements"):
            if len(given := getattr(suite, name)) > 1:
                raise ValueError(f"{name} must be one: rules are only by size and ranks, not {', '.join(given)}")
        check_writable("--tune", path)
        return read_rules(path) if path.is_file() else ()

    return said_by_rank_0(world.transport, "tune", read)


def write_tuned(path: Path, before: Sequence[Rule], rows: Sequence[Row], mpi: str) -> None:
    """Replace the rules of these rows' collectives on this number of ranks; ``mpi`` is the library's name."""
    new = tuned(rows)
    mine = {(rule.collective, rule.ranks) for rule in new}
    kept = [rule for rule in before if (rule.collective, rule.ranks) not in mine]
    machine = {"host": platform.node(), "cores": os.cpu_count(), "mpi": mpi}
    with replacing("--tune", path) as file:
        write_rules(file, machine, [*kept, *new])
