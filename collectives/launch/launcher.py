"""What launchers tell each process in environment variables, which can be read before MPI starts, or without MPI."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

OPEN_MPI = "Open MPI's mpirun"


@dataclass(frozen=True)
class Launch:
    """What the launcher says. ``local_rank`` is None if it does not tell; no launcher means one rank."""

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
    ("PALS", "PMI_SIZE", "PMI_RANK", "PALS_LOCAL_RANKID"),
    ("Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK"),
)

# How the names of all such variables begin. A child that inherits them takes itself for a rank of this job.
PREFIXES = (
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_", "OMPI_NUM_APP", "OMPI_APP_", "OMPI_FIRST_RANKS"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir"),
    *("PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIEXEC_", "I_MPI_HYDRA_"),
    *("MPIRUN_", "MV2_COMM_WORLD_", "PALS_", "ALPS_APP_", "FLUX_TASK_", "SLURM_"),
)
SETTINGS = ("PMIX_MCA_", "PRTE_MCA_", "PMIX_PREFIX", "PRTE_PREFIX")  # kept: the user's, or where the library is


def launch_of(environment: Mapping[str, str]) -> Launch:
    """What started this process, as far as its variables tell.

    >>> launch_of({"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"})
    Launch(launcher='Hydra (MPICH, Intel MPI)', size=4, rank=2, local_rank=0)
    """
    for name, *variables in LAUNCHERS:
        if all(variable in environment for variable in variables):
            return Launch(name, *(int(environment[variable]) for variable in variables))
    return Launch("none")


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment for a child that is no rank of this job; settings of MPI and of UCX stay.

    >>> sorted(child_environment({"PMIX_RANK": "1", "UCX_TLS": "all", "OMPI_MCA_pml": "ucx"}))
    ['OMPI_MCA_pml', 'PYTHONPATH', 'PYTHONSAFEPATH', 'UCX_TLS']
    """
    kept = [name for name in environment if name.startswith(SETTINGS) or not name.startswith(PREFIXES)]
    # The child finds the modules that this process finds, in the same folders, and searches no folder before them.
    modules = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
    return {name: environment[name] for name in kept} | modules
