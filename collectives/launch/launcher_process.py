"""The process that started this job, seen from a rank on its host."""

import os
import signal
import time
from pathlib import Path

ENDED = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun")
SCHEDULED = "srun"  # which Slurm ends
NAP_S = 0.1
START = 18  # among the fields of /proc/PID/stat after the state: when a process began


def launcher_process(proc: Path = Path("/proc")) -> Path | None:
    """The folder in /proc of what started this job: the nearest launcher above this process; None if there is none.

    An OSError says that /proc cannot be read.
    """
    process = proc / str(os.getppid())
    while process.name != "0":
        name, _, others = stat_of(process)
        if name in (*ENDED, SCHEDULED):
            return process
        process = proc / others[0]
    return None


def stat_of(process: Path) -> tuple[str, str, list[str]]:
    """The name of a process, its state, and the rest that /proc tells.

    An OSError says that it cannot be read.
    """
    # "PID (NAME) STATE PARENT ...", and there may be brackets in the name
    name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
    state, *others = rest.split()
    return name, state, others


def end_launcher(after_s: float = 30.0, kill_after_s: float = 10.0) -> None:
    """End a launcher that waits for ever, even after an abort, for its daemons behind a dead link.

    A child process does so, if the launcher is on this host: it asks the launcher to end, and later kills it. Before
    each, a launcher that works has time to tidy up on many hosts.
    """
    try:
        process = launcher_process()
        if process is None or stat_of(process)[0] not in ENDED or os.fork():
            return
    except OSError:  # /proc cannot be read, or there is no room for a process
        return
    try:
        os.setsid()  # the launcher ends the groups of its ranks
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # and waits for the ends of what a rank has open
        began = stat_of(process)[2][START]
        for number, limit_s in ((signal.SIGTERM, after_s), (signal.SIGKILL, kill_after_s)):
            for _ in range(round(limit_s / NAP_S)):
                time.sleep(NAP_S)
                _, state, others = stat_of(process)
                if state in "ZX" or others[START] != began:
                    return
            os.kill(int(process.name), number)
    finally:
        os._exit(0)
