"""Describe where and how a run was made, and read saved runs."""

import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import convert

from dear_mpi.bench.machine_file import KIND, MachineFile, Row
from dear_mpi.collectives.launch.launcher import child_environment, launch_of
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.transports.wait_policy import own_cores
from dear_mpi.ranks.host import CLOCK, CONGESTION, cpu_model, read, system, versions
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import check_distinct

# Variables that configure MPI, a network, memory or threads. Others may contain a secret.
SETTINGS = (
    *("OMPI_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "NCCL_", "CUDA_"),
    *("HCOLL_", "PSM2_", "SHARP_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MPI4PY_LIBMPI"),
    *("MPI4PY_RC_", "GLIBC_TUNABLES", "MALLOC_", "NUMPY_MADVISE_HUGEPAGE"),
)
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "JWT")
# Rows that agree in these columns are one point.
CHOSEN = (*KIND, "start", "algorithm", "memory", "segment_bytes", "bytes")

Point: TypeAlias = tuple[Any, ...]


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


@dataclass(frozen=True)
class Run:
    """``head``: the file's other keys."""

    name: str
    rows: Sequence[Row]
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> dict[Point, Row]:
        return {point_of(row): row for row in self.rows}


def point_of(row: Row) -> Point:
    return tuple(getattr(row, name) for name in CHOSEN)


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
