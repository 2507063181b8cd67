"""Record where and how a report was made, to tell machines, or states of one machine, apart."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dear_mpi.collectives.launch.launcher import child_environment, launch_of
from dear_mpi.collectives.transports.wait_policy import own_cores
from dear_mpi.ranks.host import CLOCK, CONGESTION, cpu_model, read, system, versions
from dear_mpi.ranks.world import World

# Variables that configure an MPI library, a network, memory or a pool of threads. Others are omitted, because they may
# contain a secret.
SETTINGS = (
    *("OMPI_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "NCCL_", "CUDA_"),
    *("HCOLL_", "PSM2_", "SHARP_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MPI4PY_LIBMPI"),
    *("MPI4PY_RC_", "GLIBC_TUNABLES", "MALLOC_", "NUMPY_MADVISE_HUGEPAGE"),
)


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def provenance(world: World, began: str) -> dict[str, Any]:
    """Collective: describe where and how a run was made, on rank 0; ``began`` is its start time.

    ``ranks`` has each rank's host and cores. Processors, kernels and TCP's congestion control are texts; semicolons
    separate differing ones.
    """
    made = commit(Path(__file__).parents[1]) if world.rank == 0 else None  # only one process asks git
    here = platform.node(), sorted(own_cores()), cpu_model(), system(), read(CONGESTION), made
    hosts, cores, cpus, kernels, congestion, commits = zip(*world.transport.gather_values(here), strict=True)
    clock = time.get_clock_info("perf_counter")
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
        "cpu": all_of(cpus),
        "kernel": all_of(kernels),
        "congestion_control": all_of(congestion),
        "versions": versions(),
        "environment": settings(os.environ),
    }


def all_of(texts: tuple[str, ...]) -> str:
    return "; ".join(dict.fromkeys(texts))


def git(folder: Path, *arguments: str) -> str | None:
    """Return git's output in a folder; None if it fails or is missing."""
    try:
        said = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def commit(package: Path) -> str | None:
    """Return these files' commit, and whether they differ from it; None outside a checkout."""
    name = git(package, "rev-parse", "--short=10", "HEAD")
    if name is None or git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{name}, with changes that are in no commit" if changed else f"{name}, unchanged"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are settings, without a launcher's and without names like a secret's."""
    kept = child_environment(environment)
    return {name: kept[name] for name in sorted(kept) if name.startswith(SETTINGS) and not is_secret(name)}


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "JWT"))
