"""Identify the launcher of this job by environment variables and /proc.

Forked children must neither call MPI nor end the job.
"""

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

OPEN_MPI = "Open MPI's mpirun"
NOT_AT_IMPORT = "MPI4PY_RC_INITIALIZE"  # whether import starts MPI


@dataclass(frozen=True)
class Launch:
    """``local_rank``: None if unknown."""

    launcher: str
    size: int = 1
    rank: int = 0
    local_rank: int | None = None


# Launcher and its variables of size, rank, local rank, in this order: under Slurm, ranks of Open MPI or Hydra
# inherit a daemon's variables, equal on all.
LAUNCHERS = (
    (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("Hydra (MPICH, Intel MPI)", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ("PALS", "PMI_SIZE", "PMI_RANK", "PALS_LOCAL_RANKID"),
    ("Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", "PMI_LOCAL_RANK"),
    ("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK"),
)

# A child that inherits these believes it is a rank of this job.
PREFIXES = (
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_", "OMPI_NUM_APP", "OMPI_APP_", "OMPI_FIRST_RANKS"),
    *("OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir"),
    *("PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIEXEC_", "I_MPI_HYDRA_"),
    *("MPIRUN_", "MV2_COMM_WORLD_", "PALS_", "ALPS_APP_", "FLUX_TASK_", "SLURM_", NOT_AT_IMPORT),
)
SETTINGS = ("PMIX_MCA_", "PRTE_MCA_", "PMIX_PREFIX", "PRTE_PREFIX")  # the user's, or the library's location


def launch_of(environment: Mapping[str, str]) -> Launch:
    for name, *variables in LAUNCHERS:
        if all(variable in environment for variable in variables):
            return Launch(name, *(int(environment[variable]) for variable in variables))
    return Launch("none")


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a child outside this job, with settings of MPI and UCX."""
    kept = [name for name in environment if name.startswith(SETTINGS) or not name.startswith(PREFIXES)]
    # From this process's folders, and none before.
    modules = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
    return {name: environment[name] for name in kept} | modules


ENDED = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun")
SCHEDULED = "srun"  # Slurm ends it
NAP_S = 0.1
OVER = "ZX"  # ended, reaped or not


class Status(NamedTuple):
    name: str
    state: str
    parent: str
    began: str


def status_of(process: Path) -> Status:
    """OSError: gone or unreadable."""
    # "PID (NAME) STATE PARENT ...", perhaps with brackets in the name
    name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
    state, parent, *others = rest.split()
    return Status(name, state, parent, began=others[17])


def launcher_process(proc: Path = Path("/proc")) -> Path | None:
    process = proc / str(os.getppid())
    while process.name != "0":
        status = status_of(process)
        if status.name in (*ENDED, SCHEDULED):
            return process
        process = proc / status.parent
    return None


def end_launcher(after_s: float = 30.0, kill_after_s: float = 10.0) -> None:
    """End this host's launcher if it hangs after an abort, waiting for daemons beyond a dead link.

    A child sends SIGTERM, later SIGKILL; a healthy launcher first has time to clean up.
    """

    def end(process: Path, began: str) -> None:
        for number, limit_s in ((signal.SIGTERM, after_s), (signal.SIGKILL, kill_after_s)):
            for _ in range(round(limit_s / NAP_S)):
                time.sleep(NAP_S)
                status = status_of(process)
                if status.state in OVER or status.began != began:
                    return
            os.kill(int(process.name), number)

    with suppress(OSError):
        process = launcher_process()
        if process is not None and status_of(process).name in ENDED:
            act = partial(end, process, status_of(process).began)
            in_a_child(act, os.sysconf("SC_OPEN_MAX"))  # the launcher waits for a rank's open files


def in_a_child(act: Callable[[], object], closed: int) -> None:
    """Call ``act()`` in a forked child that outlives this rank, without its first ``closed`` descriptors."""
    with suppress(OSError):
        if os.fork() == 0:
            try:
                os.setsid()  # launchers end ranks' process groups
                os.closerange(0, closed)
                act()
            finally:
                os._exit(0)


ADVICE = "end a forked child with os._exit before it comes back to dear-mpi"


@contextmanager
def no_child_leaves() -> Iterator[None]:
    """End any child that leaves the block."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            end_child(error)
        raise
    if os.getpid() != process:
        end_child(RuntimeError(ADVICE))


def end_child(error: BaseException | None) -> None:
    """End this child without MPI's exit handler."""
    code = error.code or 0 if isinstance(error, SystemExit) else int(error is not None)
    try:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        elif error is not None and not isinstance(error, SystemExit):
            print(f"dear-mpi: forked child {os.getpid()} fails:", file=sys.stderr)
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)


@cache
def end_children_at_exit() -> None:
    """End forked children before MPI's exit handler: with 0, or 1 after an exception."""
    process = os.getpid()

    def ends() -> None:
        if os.getpid() != process:
            end_child(SystemExit(int(hasattr(sys, "last_type"))))

    atexit.register(ends)
