"""Where and how a report was made: who reads it later needs it to tell two machines, or two states of one, apart."""

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
from dear_mpi.collectives.transports.patience import own_cores
from dear_mpi.ranks.kernel import CLOCK, CONGESTION, cpu_model, read, system
from dear_mpi.ranks.versions import versions
from dear_mpi.ranks.world import World

# Variables that configure an MPI library, a network, memory or a pool of threads. No other variable is kept, because it
# may contain a secret.
SETTINGS = (
    *("OMPI_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "MV2_", "NCCL_", "CUDA_"),
    *("HCOLL_", "PSM2_", "SHARP_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MPI4PY_LIBMPI"),
    *("MPI4PY_RC_", "GLIBC_TUNABLES", "MALLOC_", "NUMPY_MADVISE_HUGEPAGE"),
)


def now() -> str:
    """UTC, in ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def provenance(world: World, began: str) -> dict[str, Any]:
    """Collective: where and how the run that ``began`` then was made, by rank 0.

    ``ranks`` contains the host and the cores of each rank. Processors, kernels and TCP's congestion control are texts;
    different ones are separated by semicolons.
    """
    made = commit(Path(__file__).parents[1]) if world.rank == 0 else None  # one process asks git, not all ranks
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
    """The output of git in a folder; None if it fails or is not there."""
    try:
        said = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def commit(package: Path) -> str | None:
    """The commit of these files, and whether they differ from it; None if they belong to no checkout."""
    name = git(package, "rev-parse", "--short=10", "HEAD")
    if name is None or git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{name}, with changes that are in no commit" if changed else f"{name}, unchanged"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are settings, without those of a launcher and those named like a secret."""
    kept = child_environment(environment)
    return {name: kept[name] for name in sorted(kept) if name.startswith(SETTINGS) and not is_secret(name)}


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "JWT"))
