"""Describe where and how a run was made, and derive rules of ``auto`` from rows.

A rule names the fastest of our algorithms at each size. Within its interval, the next smaller size's algorithm is
preferred, then the first named. Not all ranks can use shared memory: if fastest, it gets an additional rule.
"""

import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeAlias

from msgspec import convert

from dear_mpi.bench.machine_file import KIND, MachineFile, Row
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.algorithms.registry import is_installed, runner_of
from dear_mpi.collectives.launch.launcher import child_environment, launch_of
from dear_mpi.collectives.plans.tuning import Rule, read_rules, write_rules
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.collectives.transports.wait_policy import own_cores
from dear_mpi.ranks.host import CLOCK, CONGESTION, cpu_model, read, system, versions
from dear_mpi.ranks.world import World
from dear_mpi.reporting.files import check_writable, replacing
from dear_mpi.reporting.units import check_distinct, grouped

# Variables that configure MPI, a network, memory or threads. Others may contain a secret.
SETTINGS = (
    *("OMPI_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "NCCL_", "CUDA_"),
    *("HCOLL_", "PSM2_", "SHARP_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MPI4PY_LIBMPI"),
    *("MPI4PY_RC_", "GLIBC_TUNABLES", "MALLOC_", "NUMPY_MADVISE_HUGEPAGE"),
)
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "JWT")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def provenance(world: World, began: str) -> dict[str, Any]:
    """Collective: return rank 0's description; texts that differ between ranks are joined by semicolons."""
    made = commit(Path(__file__).parents[1]) if world.rank == 0 else None
    here = platform.node(), sorted(own_cores()), cpu_model(), system(), read(CONGESTION), made
    hosts, cores, *texts, commits = zip(*world.transport.gather_values(here), strict=True)
    clock, environment = time.get_clock_info("perf_counter"), child_environment(os.environ)
    kept = (
        name for name in sorted(environment) if name.startswith(SETTINGS) and not any(map(name.upper().count, SECRETS))
    )
    return {
        "host": hosts[0],
        "date": began,
        "version": sys.modules["dear_mpi"].__version__,
        "commit": commits[0],
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "mpi": world.transport.name,
        "launcher": launch_of(os.environ).launcher,
        "hosts": world.ranks_per_host,
        "ranks": [{"host": host, "cores": own} for host, own in zip(hosts, cores, strict=True)],
        "cores": os.cpu_count(),
        "clock": {"source": clock.implementation, "kernel": read(CLOCK), "resolution_s": clock.resolution},
        **dict(
            zip(
                ("cpu", "kernel", "congestion_control"), ("; ".join(dict.fromkeys(each)) for each in texts), strict=True
            )
        ),
        "versions": versions(),
        "environment": {name: environment[name] for name in kept},
    }


def git(folder: Path, *arguments: str) -> str | None:
    try:
        said = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def commit(package: Path) -> str | None:
    """Return a checkout's commit, and whether these files differ from it."""
    name = git(package, "rev-parse", "--short=10", "HEAD")
    if name is None or git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{name}, {'with changes that are in no commit' if changed else 'unchanged'}"


CHOSEN = (*KIND, "start", "algorithm", "memory", "segment_bytes", "bytes")  # rows that agree in these are one point
Point: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Run:
    """``head``: the file's other keys."""

    name: str
    rows: Sequence[Row]
    head: Mapping[str, Any] = field(default_factory=dict)


def point_of(row: Row) -> Point:
    return tuple(getattr(row, name) for name in CHOSEN)


def points_of(run: Run) -> dict[Point, Row]:
    return {point_of(row): row for row in run.rows}


def read_runs(what: str, files: Sequence[str]) -> list[Run]:
    """Read files of ``bench --json``; a ValueError for others, and for equal names."""
    check_distinct(what, files)
    return list(map(read_run, files))


def read_run(text: str) -> Run:
    with reading("run", Path(text), "dear-mpi bench --json") as content:
        rows = convert(content, MachineFile).rows
        if not rows:
            raise ValueError("it has no rows")
        point, times = Counter(map(point_of, rows)).most_common(1)[0]
        if times > 1:
            raise ValueError(f"it has {times} rows of one point ({', '.join(map(str, point))})")
    return Run(text, rows, {name: value for name, value in content.items() if name != "rows"})


def may_be_chosen(name: str) -> bool:
    """Return whether ``auto`` may choose it. User algorithms are excluded: a table of rules has no code."""
    return is_installed(name) and runner_of(name) == "messages"


def tuned(rows: Sequence[Row]) -> list[Rule]:
    groups = grouped((row for row in rows if not row.wrong), lambda row: (row.collective, row.ranks))
    return [rule for group in groups.values() for rule in of_collective(group)]


def of_collective(rows: list[Row]) -> list[Rule]:
    """Borders are geometric means of two sizes."""
    ours = sorted((row for row in rows if may_be_chosen(row.algorithm)), key=lambda row: row.bytes)
    if not ours:
        return []
    best = list[Row]()
    for group in grouped(ours, lambda row: row.bytes).values():
        fastest = min(group, key=lambda row: row.p50_us)
        as_good = [row for row in group if row.p50_us <= fastest.ci_high_us]
        best.append(next((row for row in as_good if best and key(row) == key(best[-1])), as_good[0]))
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


def rules_before(path: Path, suite: Suite, world: World, *, of_auto: bool) -> tuple[Rule, ...]:
    """Collective: return the file's rules of ``auto``, before a run; none if it is for an MPI library.

    ArgumentError: other files, nothing to choose, or several dtypes, ops or placements.
    """

    def read() -> tuple[Rule, ...]:
        if of_auto and not any(map(may_be_chosen, suite.names)):
            names = ", ".join(suite.names)
            raise ValueError(f"algorithms must name some that auto may pick, such as ring, not {names}")
        for name in ("dtypes", "ops", "placements"):
            if len(given := getattr(suite, name)) > 1:
                raise ValueError(f"{name} must be one: rules are only by size and ranks, not {', '.join(given)}")
        check_writable("--tune", path)
        return read_rules(path) if of_auto and path.is_file() else ()

    return said_by_rank_0(world.transport, "tune", read)


def write_text(path: Path, text: str) -> None:
    with replacing("--tune", path) as file:
        file.write_text(text, encoding="utf-8")


def write_tuned(path: Path, before: Sequence[Rule], rows: Sequence[Row], mpi: str) -> None:
    """Replace these collectives' rules on this number of ranks."""
    new = tuned(rows)
    mine = {(rule.collective, rule.ranks) for rule in new}
    kept = [rule for rule in before if (rule.collective, rule.ranks) not in mine]
    with replacing("--tune", path) as file:
        write_rules(file, {"host": platform.node(), "cores": os.cpu_count(), "mpi": mpi}, [*kept, *new])
