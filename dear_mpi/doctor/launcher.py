"""What launchers tell each process in its environment; it is there before MPI is, and where MPI does not work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OPEN_MPI", "Launch", "launch_of"]

OPEN_MPI = "Open MPI's mpirun"


@dataclass(frozen=True)
class Launch:
    """``local_rank`` is None where the launcher does not tell it; without a launcher, it is one rank."""

    launcher: str
    size: int = 1
    rank: int = 0
    local_rank: int | None = None


# Launcher, and its variables of size, rank and local rank. The order matters: ranks that Open MPI or Hydra starts under
# Slurm inherit Slurm's variables of a daemon, which are the same for all of them.
LAUNCHERS = (
    (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("Hydra (MPICH, Intel MPI)", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ("Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK"),
)


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Who started this process, as far as its variables tell.

    >>> launch_of({"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"})
    Launch(launcher='Hydra (MPICH, Intel MPI)', size=4, rank=2, local_rank=0)
    """
    for name, *variables in LAUNCHERS:
        if all(variable in environment for variable in variables):
            return Launch(name, *(int(environment[variable]) for variable in variables))
    return Launch("none")
