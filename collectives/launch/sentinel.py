"""A child process that watches over a rank where no thread of it can run: while MPI starts, and while it ends.

It also says when its rank dies without a word, which some launchers report by the number of the process alone.

    rank        forks --- MPI starts --- tells "r" --------- tells "e" --- MPI ends --- is gone: end of file
    sentinel    waits for so long        for ever            for so long                ends
"""

import atexit
import contextlib
import os
import select
import signal
import sys
import time
from functools import cache

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.launch.neighbours import FAREWELL, Notice, own_notice

NAP_S, LOOKS = 0.1, 30  # for a launcher to end what is left of a job
WAITS = {b"s": "MPI to start", b"r": "", b"e": "MPI to end"}


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
        atexit.register(self.tell, b"e")

    def tell(self, state: bytes) -> None:
        """MPI is being started (s), the rank runs (r), MPI will be ended (e)."""
        with contextlib.suppress(OSError):  # the child was killed
            os.write(self.writing, state)

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
