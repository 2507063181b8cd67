"""What started this job: what it tells each process in environment variables, and its own process in /proc.

And forked children of a rank, which share its memory but are no ranks: they must neither call MPI nor end the job.
"""

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

OPEN_MPI = "Open MPI's mpirun"
NOT_AT_IMPORT = "MPI4PY_RC_INITIALIZE"  # whether importing mpi4py.MPI starts MPI


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
    *("OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir"),
    *("PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIEXEC_", "I_MPI_HYDRA_"),
    *("MPIRUN_", "MV2_COMM_WORLD_", "PALS_", "ALPS_APP_", "FLUX_TASK_", "SLURM_", NOT_AT_IMPORT),
)
SETTINGS = ("PMIX_MCA_", "PRTE_MCA_", "PMIX_PREFIX", "PRTE_PREFIX")  # kept: the user's, or where the library is


def launch_of(environment: Mapping[str, str]) -> Launch:
    """What started this process, as far as its variables tell."""
    for name, *variables in LAUNCHERS:
        if all(variable in environment for variable in variables):
            return Launch(name, *(int(environment[variable]) for variable in variables))
    return Launch("none")


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Our environment for a child that is no rank of this job; settings of MPI and of UCX stay."""
    kept = [name for name in environment if name.startswith(SETTINGS) or not name.startswith(PREFIXES)]
    # The child finds the modules that this process finds, in the same folders, and searches no folder before them.
    modules = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}
    return {name: environment[name] for name in kept} | modules


ENDED = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun")
SCHEDULED = "srun"  # which Slurm ends
NAP_S = 0.1
OVER = "ZX"  # states of a process that has ended, whether or not its parent has seen it


class Status(NamedTuple):
    """What /proc tells of a process; ``state`` is a letter."""

    name: str
    state: str
    parent: str
    began: str


def status_of(process: Path) -> Status:
    """The status of a process, by its folder in /proc; an OSError says that it cannot be read."""
    # "PID (NAME) STATE PARENT ...", and there may be brackets in the name
    name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
    state, parent, *others = rest.split()
    return Status(name, state, parent, began=others[17])


def launcher_process(proc: Path = Path("/proc")) -> Path | None:
    """The folder in /proc of the nearest launcher above this process, if there is one; raises as ``status_of``."""
    process = proc / str(os.getppid())
    while process.name != "0":
        status = status_of(process)
        if status.name in (*ENDED, SCHEDULED):
            return process
        process = proc / status.parent
    return None


def end_launcher(after_s: float = 30.0, kill_after_s: float = 10.0) -> None:
    """End a launcher of this host that waits for ever, even after an abort, for its daemons beyond a dead link: a child
    process asks it to end, and later kills it. Before each, a launcher that works has time to tidy up."""
    try:
        process = launcher_process()
        if process is None or status_of(process).name not in ENDED or os.fork():
            return
    except OSError:  # /proc cannot be read, or there is no room for a process
        return
    try:
        os.setsid()  # the launcher ends the groups of its ranks
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # and waits for the ends of what a rank has open
        began = status_of(process).began
        for number, limit_s in ((signal.SIGTERM, after_s), (signal.SIGKILL, kill_after_s)):
            for _ in range(round(limit_s / NAP_S)):
                time.sleep(NAP_S)
                status = status_of(process)
                if status.state in OVER or status.began != began:
                    return
            os.kill(int(process.name), number)
    finally:
        os._exit(0)


ADVICE = "end a forked child with os._exit before it comes back to dear-mpi"


@contextmanager
def no_child_leaves() -> Iterator[None]:
    """End a child that is forked inside the block and leaves it: what follows is for the rank alone."""
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
    """End this process, which is a child, with the traceback of its error, and without anything that the rank does."""
    code = error.code or 0 if isinstance(error, SystemExit) else 0 if error is None else 1
    try:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        elif error is not None and not isinstance(error, SystemExit):
            print(f"dear-mpi: forked child {os.getpid()} fails:", file=sys.stderr)
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also if its streams are closed
        os._exit(code if isinstance(code, int) else 1)


@cache
def end_children_at_exit() -> None:
    """End forked children at exit before MPI's own exit handler runs: only the rank may finalise MPI.

    The code of a child's ``sys.exit`` is not known there: it ends with 0, or with 1 after an exception.
    """
    process = os.getpid()

    def ends() -> None:
        if os.getpid() != process:  # an exception that ended it has been shown
            end_child(SystemExit(int(hasattr(sys, "last_type"))))

    atexit.register(ends)
