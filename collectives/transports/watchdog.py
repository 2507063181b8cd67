"""Report a rank that waits too long: for which message, and which ranks keep it waiting.

A thread polls the transport's ``Waits``, at no cost to waiting ranks. Limits: docs/faults.md.
"""

import os
import sys
import threading
from collections.abc import Callable

from dear_mpi.collectives.launch.launcher import end_launcher, launch_of
from dear_mpi.collectives.transports.elastic import present
from dear_mpi.collectives.transports.transport import Transport

CHECKS = 8  # before a report
GRACE_S = 2.0  # between a report and the job's end: other ranks also report
ABORT_S = 10.0


class Watchdog:
    """Watch one rank inside a ``with`` block.

    Args:
        after_s: report after this many seconds of waiting.
        abort: then end the job with a nonzero exit code.
        doomed: maps seconds waited to a reason to end the job at once, or "".
    """

    def __init__(
        self,
        transport: Transport,
        after_s: float,
        *,
        abort: bool = False,
        doomed: Callable[[float], str] = lambda waited_s: "",
    ) -> None:
        self.transport, self.waits, self.after_s = transport, transport.waits, after_s
        self.rank = transport.rank  # also after a death
        self.abort, self.doomed = abort, doomed
        self.nap_s = min(1.0, after_s / CHECKS)
        self.over = threading.Event()
        self.progress: tuple[int, ...] = ()
        self.waited_s = 0.0
        self.thread = threading.Thread(target=self.watch, name="watchdog", daemon=True)

    def watch(self) -> None:
        while not self.over.wait(self.nap_s):
            self.look()

    def look(self) -> None:
        """Count naps: a stopped process's time does not pass."""
        now, number = self.waits.now, self.waits.number
        try:
            progress, what = ((), "") if now is None else (now.progress() or (number,), now.waits_for())
        except Exception:  # the wait ended meanwhile
            progress, what = (), ""
        if progress != self.progress or not what:
            if self.waited_s > 0:
                self.waits.monitor.post()
            if self.waited_s >= self.after_s:
                self.say(f"goes on after {self.waited_s:.3g} s")
            self.progress, self.waited_s = progress, 0.0
            return
        before, self.waited_s = self.waited_s, self.waited_s + self.nap_s
        what = f"{what}, collective {progress[0]}"
        if before == 0:
            self.waits.monitor.post(progress, what)
        if before < self.after_s <= self.waited_s:
            self.say(f"has waited {self.after_s:g} s for {what}; {self.waits.monitor.blame()}")
            if self.abort:
                self.end(f"ends the job after a stall of {self.after_s:g} s, as asked")
        elif why := self.doomed(self.waited_s):
            self.end(f"waits for {what}, {why}")

    def say(self, text: str) -> None:
        print(f"stall: rank {self.rank} {text}", file=sys.stderr, flush=True)

    def end(self, why: str) -> None:
        """End the job, or only stopped ranks if others outlive them; or this process if MPI does not return."""
        survives, wait = present(self.transport) is not None, (self.waits.now, self.waits.number)
        stopped = self.waits.monitor.stopped() if survives else []
        if self.over.wait(GRACE_S) or (survives and wait != (self.waits.now, self.waits.number)):
            return
        for each in stopped:
            self.say(f"ends {each}, which is stopped")
            each.kill()
        if stopped:
            self.waited_s = 0.0  # for the next report, if that does not help
            return
        timer = threading.Timer(ABORT_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        if launch_of(os.environ).size > 1:
            end_launcher()
        self.transport.abort(f"rank {self.rank} {why}")
        timer.cancel()

    def __enter__(self) -> "Watchdog":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
