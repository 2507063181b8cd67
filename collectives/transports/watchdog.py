"""A watchdog: a thread that reports when a rank has waited too long, for what, and which ranks keep it waiting.

It looks at the transport's ``Waits`` now and then, and costs the waiting ranks nothing. It calls MPI only to abort, and
to read the notes of ranks that left.
docs/faults.md says what it cannot know.
"""

import os
import sys
import threading
from collections.abc import Callable

from dear_mpi.collectives.launch.launcher import end_launcher, launch_of
from dear_mpi.collectives.transports.transport import Transport

LOOKS = 8  # in the time after which it speaks
GRACE_S = 2.0  # between a report and the end of the job: other ranks that wait report, too
ABORT_S = 10.0  # for which an abort may take


class Watchdog:
    """A context manager; watches over one rank.

    Args:
        after_s: report after this many seconds of waiting for one thing.
        abort: end the job then, with an exit code that is not 0.
        doomed: takes the seconds waited; a reason why the wait cannot end makes the watchdog end the job, "" does not.
    """

    def __init__(
        self,
        transport: Transport,
        after_s: float,
        *,
        abort: bool = False,
        doomed: Callable[[float], str] = lambda waited_s: "",
    ) -> None:
        self.transport, self.waits, self.after_s, self.abort = transport, transport.waits, after_s, abort
        self.doomed = doomed
        self.nap_s = min(1.0, after_s / LOOKS)
        self.over = threading.Event()
        self.progress: tuple[int, ...] = ()
        self.waited_s = 0.0
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)

    def watch(self) -> None:
        while not self.over.wait(self.nap_s):
            self.look()

    def look(self) -> None:
        """Naps are counted, not the clock: while this process is stopped, no time passes for it."""
        now, number = self.waits.now, self.waits.number
        try:
            progress, what = ((), "") if now is None else (now.progress() or (number,), now.waits_for())
        except Exception:  # it has moved while it was read
            progress, what = (), ""
        if progress != self.progress or not what:
            if self.waited_s > 0:
                self.waits.notice.post()
            if self.waited_s >= self.after_s:
                self.say(f"goes on after {self.waited_s:.3g} s")
            self.progress, self.waited_s = progress, 0.0
            return
        before, self.waited_s = self.waited_s, self.waited_s + self.nap_s
        what = f"{what}, collective {progress[0]}"
        if before == 0:
            self.waits.notice.post(progress, what)
        if before < self.after_s <= self.waited_s:
            self.say(f"has waited {self.after_s:g} s for {what}; {self.waits.notice.blame()}")
            for alarm in self.waits.alarms:
                alarm()
            if self.abort:
                self.end(f"ends the job after a stall of {self.after_s:g} s, as asked")
        elif why := self.doomed(self.waited_s):
            self.end(f"waits for {what}, {why}")

    def say(self, text: str) -> None:
        print(f"stall: rank {self.transport.rank} {text}", file=sys.stderr, flush=True)

    def end(self, why: str) -> None:
        """End the job; this process at least, if MPI does not come back."""
        if self.over.wait(GRACE_S):
            return
        timer = threading.Timer(ABORT_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if launch_of(os.environ).size > 1:
            end_launcher()
        self.transport.abort(f"rank {self.transport.rank} {why}")
        timer.cancel()

    def __enter__(self) -> "Watchdog":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
