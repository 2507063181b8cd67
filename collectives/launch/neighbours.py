"""The ranks of this job on this host, as /proc shows them: which process is stopped, and what does each wait for?

Each rank writes what it waits for on its notice: an anonymous file in memory, which the others find among its
descriptors. It works before MPI starts and while it ends. The ranks of a host are the processes with the same parent,
the launcher: those that something in between has started (``mpirun sh -c ...``) do not see each other.

A sentinel, a child process, watches over a rank where no thread of it can run. It also says when its rank dies without
a word, which some launchers report by the number of the process alone.

    rank        forks --- MPI starts --- tells "r" --------- tells "e" --- MPI ends --- is gone: end of file
    sentinel    waits for so long        for ever            for so long                ends
"""

import atexit
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dear_mpi.collectives.launch.launcher import OVER, Launch, launch_of, status_of
from dear_mpi.collectives.program.errors import name_ranks

NAME = "dear-mpi-notice"
NOTICE_BYTES = 1024
LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # variables of launchers: ranks on this host
FAREWELL = "the end of the job: this rank aborts it"
IDLE = "waits for no other rank: it computes, sleeps or is elsewhere"
NAP_S, LOOKS = 0.1, 30  # for a launcher to end what is left of a job
WAITS = {b"s": "MPI to start", b"r": "", b"e": "MPI to end"}


@dataclass(frozen=True)
class Neighbour:
    """A rank, this one included. ``progress`` is how far it has come, ``waits`` for what it waits ("" for nothing)."""

    rank: int
    process: int | None = None  # None: a thread
    stopped: bool = False
    progress: tuple[int, ...] = ()
    waits: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} ({'a thread' if self.process is None else f'process {self.process}'})"

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):  # it has just ended
                os.kill(self.process, signal.SIGKILL)


class Notice:
    """Where this process says what it waits for."""

    def __init__(self) -> None:
        self.launcher, self.size = os.getppid(), launch_of(os.environ).size
        self.process = os.getpid()  # the rank's, also in its sentinel, which shares the notice
        self.descriptor: int | None = None
        self.one_host = False  # with all ranks in sight
        with contextlib.suppress(OSError, ValueError):
            in_between = launch_in(Path(f"/proc/{self.launcher}")).launcher != "none"
            self.one_host = not in_between and str(self.size) in map(os.environ.get, LOCAL_SIZES)
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or forbidden in this container
            self.descriptor = os.memfd_create(NAME)
            self.post()

    def post(self, progress: tuple[int, ...] = (), waits: str = "") -> None:
        if self.descriptor is not None:
            notice = f"{json.dumps([self.process, progress])}\n{waits}".encode(errors="replace")
            os.pwrite(self.descriptor, notice[:NOTICE_BYTES].ljust(NOTICE_BYTES), 0)

    def farewell(self) -> None:
        """Before this rank aborts the job: end those that are stopped, for which some launchers would wait."""
        self.post(waits=FAREWELL)
        for other in self.neighbours():
            if other.stopped:  # it would not hear of the abort
                other.kill()

    def read(self) -> str:
        return "" if self.descriptor is None else notice_in(os.pread(self.descriptor, NOTICE_BYTES, 0))[2]

    def blame(self) -> str:
        return blame(self.neighbours(), self.size, one_host=self.one_host)

    def neighbours(self) -> list[Neighbour]:
        """The ranks of this host that can be seen, in their order."""
        found = list[Neighbour]()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):  # it has just ended, or belongs to another user
                status = status_of(process)
                if status.parent != str(self.launcher) or status.state in OVER:
                    continue
                launch, (writer, progress, waits) = launch_in(process), read_notice(process)
                # The sentinel of a rank that is gone, adopted by the launcher, has the notice of that rank.
                if launch.launcher != "none" and writer in (None, int(process.name)):
                    found.append(Neighbour(launch.rank, int(process.name), status.state in "Tt", progress, waits))
        return sorted(found, key=lambda neighbour: neighbour.rank)


def launch_in(process: Path) -> Launch:
    pairs = (os.fsdecode(pair).partition("=") for pair in (process / "environ").read_bytes().split(b"\0"))
    return launch_of({name: value for name, _, value in pairs})


def read_notice(process: Path) -> tuple[int | None, tuple[int, ...], str]:
    """Which rank's notice a process has, by number (None: it has none), and what it says."""
    for descriptor in (process / "fd").iterdir():
        if NAME in os.readlink(descriptor):
            return notice_in(descriptor.read_bytes())
    return None, (), ""


def notice_in(content: bytes) -> tuple[int | None, tuple[int, ...], str]:
    head, _, waits = content.decode(errors="ignore").partition("\n")  # the last character may be cut
    process, progress = json.loads(head or "[null, []]")
    return process, tuple(progress), waits.rstrip()


@cache
def own_notice() -> Notice:
    return Notice()


def abort_job(message: str) -> None:
    """Say why, and end all ranks. MPI is started if it has not been: the others may wait for it there."""
    say(message)
    try:
        own_notice().farewell()
    finally:
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)


def blame(neighbours: Sequence[Neighbour], size: int, *, one_host: bool = False) -> str:
    """Which ranks keep the others waiting, as far as can be seen.

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


class Sentinel:
    """Forks; to be made while the process has one thread."""

    def __init__(self, after_s: float, *, abort: bool) -> None:
        own_notice()  # the child's, too
        reading, self.writing = os.pipe()
        self.pid, self.rank = os.getpid(), launch_of(os.environ).rank
        if os.fork() == 0:
            try:
                os.close(self.writing)
                os.setsid()  # Ctrl-C, or a launcher that ends the group, is for the rank
                self.watch(reading, after_s, abort=abort)
            finally:
                os._exit(0)
        os.close(reading)
        os.register_at_fork(after_in_child=self.forget)
        atexit.register(self.tell, b"e")

    def tell(self, state: bytes) -> None:
        """MPI is being started (s), the rank runs (r), MPI will be ended (e)."""
        with contextlib.suppress(OSError):  # the child was killed, or this is another child of the rank
            os.write(self.writing, state)

    def forget(self) -> None:
        """In another child of the rank: speak no more for it, and do not keep its end from being seen."""
        with contextlib.suppress(OSError):  # a child of a child has closed it
            os.close(self.writing)
        self.writing = -1

    def watch(self, reading: int, after_s: float, *, abort: bool) -> None:
        """In the child: until the rank is gone."""
        state, before, notice, limit_s = b"s", b"", own_notice(), None
        known = set(range(notice.size)) if notice.one_host else set[int]()
        while state:
            if state != before:
                notice.post(waits=WAITS[state])
                known |= {other.rank for other in notice.neighbours()}
                limit_s = after_s if WAITS[state] else None
            before = state
            if select.select([reading], [], [], limit_s)[0]:
                state = os.read(reading, 1)
                continue
            limit_s = None  # it is said once
            if any(other.stopped for other in notice.neighbours() if other.rank == self.rank):
                continue  # it waits for no other rank: the others speak
            say(f"stall: rank {self.rank} has waited {after_s:g} s for {WAITS[state]}; {notice.blame()}")
            if abort:
                notice.farewell()
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(self.pid, signal.SIGTERM)
        # All ranks die when one does, and launchers need a moment: the first to die is to blame, unless it meant to.
        seen = notice.neighbours()
        gone = known - {other.rank for other in seen}
        meant = before == b"e" or FAREWELL in (notice.read(), *(other.waits for other in seen))
        if not meant and gone == {self.rank}:
            say(f"rank {self.rank} (process {self.pid}) has died without a word: was it killed?")
        if notice.read() == FAREWELL:
            end_the_others(notice)


def end_the_others(notice: Notice) -> None:
    """After an abort: MPICH's launcher sometimes leaves a rank that computes or sleeps, and then waits for it."""
    for descriptor in (0, 1, 2):  # the launcher waits for their ends, too
        os.close(descriptor)
    for _ in range(LOOKS):
        if not notice.neighbours():
            return
        time.sleep(NAP_S)
    for other in notice.neighbours():
        other.kill()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@cache
def sentinel(after_s: float, *, abort: bool) -> Sentinel | None:
    """The sentinel of this process, if it is a rank whose MPI no other code has started."""
    if launch_of(os.environ).size == 1 or "mpi4py.MPI" in sys.modules:
        return None
    return Sentinel(after_s, abort=abort)
