"""Find the ranks of this job on this host through /proc: which are stopped, and why each waits.

Each rank posts its wait in an anonymous file in memory, which others find among its descriptors. Ranks are the
launcher's children: under ``mpirun sh -c ...`` they do not see each other.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dear_mpi.collectives.launch.launcher import NAP_S, OVER, Launch, in_a_child, launch_of, status_of
from dear_mpi.collectives.program.errors import name_ranks

NAME = "dear-mpi-monitor"
MONITOR_BYTES = 1024
LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # ranks on this host, by launcher
FAREWELL = "the end of the job: this rank aborts it"
IDLE = "waits for no other rank: it computes, sleeps or is elsewhere"
TRIES = 30  # until a launcher has ended the rest of a job


@dataclass(frozen=True)
class Neighbour:
    """A rank; ``waits`` may be "", and ``progress`` grows with each wait."""

    rank: int
    process: int | None = None  # None: thread
    stopped: bool = False
    progress: tuple[int, ...] = ()
    waits: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} ({'a thread' if self.process is None else f'process {self.process}'})"

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):  # it has just ended
                os.kill(self.process, signal.SIGKILL)


class Monitor:
    def __init__(self) -> None:
        self.launcher, self.size = os.getppid(), launch_of(os.environ).size
        self.process = os.getpid()  # also in a child, which shares the file
        self.descriptor: int | None = None
        self.one_host = False  # all ranks are visible
        with contextlib.suppress(OSError, ValueError):  # not Linux, or forbidden here
            in_between = launch_in(Path(f"/proc/{self.launcher}")).launcher != "none"
            self.one_host = not in_between and str(self.size) in map(os.environ.get, LOCAL_SIZES)
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or forbidden here
            self.descriptor = os.memfd_create(NAME)
            self.post()

    def post(self, progress: tuple[int, ...] = (), waits: str = "") -> None:
        if self.descriptor is not None:
            content = f"{json.dumps([self.process, progress])}\n{waits}".encode(errors="replace")
            os.pwrite(self.descriptor, content[:MONITOR_BYTES].ljust(MONITOR_BYTES), 0)

    def farewell(self) -> None:
        """End stopped ranks before aborting the job: some launchers would wait for them.

        A child ends the rest 3 s later: MPICH's launcher sometimes waits for a rank that computes.
        """
        self.post(waits=FAREWELL)
        for other in self.stopped():  # they would miss the abort
            other.kill()
        if self.size > 1:
            in_a_child(self.end_the_others, 3)  # the launcher waits for standard streams, not other files

    def end_the_others(self) -> None:
        while os.getppid() == self.process:
            time.sleep(NAP_S)
        for _ in range(TRIES):
            if not self.neighbours():
                return
            time.sleep(NAP_S)
        for other in self.neighbours():
            other.kill()

    def stopped(self) -> list[Neighbour]:
        return [other for other in self.neighbours() if other.stopped]

    def blame(self) -> str:
        return blame(self.neighbours(), self.size, one_host=self.one_host)

    def neighbours(self) -> list[Neighbour]:
        found = list[Neighbour]()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):  # just ended, or another user's
                status = status_of(process)
                if status.parent != str(self.launcher) or status.state in OVER:
                    continue
                launch, (writer, progress, waits) = launch_in(process), read_monitor(process)
                # A dead rank's child has that rank's file.
                if launch.launcher != "none" and writer in (None, int(process.name)):
                    found.append(Neighbour(launch.rank, int(process.name), status.state in "Tt", progress, waits))
        return sorted(found, key=lambda neighbour: neighbour.rank)


def launch_in(process: Path) -> Launch:
    pairs = (os.fsdecode(pair).partition("=") for pair in (process / "environ").read_bytes().split(b"\0"))
    return launch_of({name: value for name, _, value in pairs})


def read_monitor(process: Path) -> tuple[int | None, tuple[int, ...], str]:
    """Return a process's writer (None without a file), progress and wait."""
    files = (file for file in (process / "fd").iterdir() if NAME in os.readlink(file))
    return monitor_in(next((file.read_bytes() for file in files), b""))


def monitor_in(content: bytes) -> tuple[int | None, tuple[int, ...], str]:
    head, _, waits = content.decode(errors="ignore").partition("\n")  # the last character may be cut
    process, progress = json.loads(head or "[null, []]")
    return process, tuple(progress), waits.rstrip()


@cache
def own_monitor() -> Monitor:
    return Monitor()


def abort_job(message: str) -> None:
    """Report why and end all ranks; starts MPI if needed, because they may wait there."""
    print(message, file=sys.stderr, flush=True)
    try:
        own_monitor().farewell()
    finally:
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)


def blame(neighbours: Sequence[Neighbour], size: int, *, one_host: bool = False) -> str:
    """Name the ranks that keep the others waiting, as far as visible.

    >>> blame([Neighbour(0, waits="a message"), Neighbour(1, 7, stopped=True)], 2)
    'rank 1 (process 7) is stopped'
    >>> blame([Neighbour(0, progress=(5, 2), waits="rank 2"), Neighbour(1, 7)], 3)
    'rank 1 (process 7) waits for no other rank: it computes, sleeps or is elsewhere; rank 2 cannot be seen from here'
    >>> blame([Neighbour(0, progress=(5, 2), waits="rank 1"), Neighbour(1, progress=(5, 0), waits="rank 0")], 2)
    'all wait, rank 1 at the earliest point: for rank 0'
    >>> blame([Neighbour(0, waits="rank 1")], 2, one_host=True)
    'rank 1 is gone'
    """
    stopped = [f"{other} is stopped" for other in neighbours if other.stopped]
    idle = [f"{other} {IDLE}" for other in neighbours if not other.waits]
    unseen = sorted(set(range(size)) - {other.rank for other in neighbours})
    gone = [f"rank {rank} is gone" for rank in unseen if one_host]
    said = gone or stopped or idle
    if neighbours and not said:
        first = min(neighbours, key=lambda other: other.progress)
        said = [f"all {'in sight ' if unseen else ''}wait, rank {first.rank} at the earliest point: for {first.waits}"]
    if unseen and not gone:
        said.append(f"{name_ranks(unseen)} cannot be seen from here")
    return "; ".join(said)
