"""Tell the other ranks when a rank leaves a session, so that none waits for it forever.

    rank 0    step 3 -- leaves: sends a note, and waits for the others -------- ends
    rank 1    step 3 -- step 4: waits for rank 0, and after seconds reads the note: ends the job

Only a rank that waits reads notes: iterations cost nothing extra. A slow rank sends none.
"""

import atexit
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.watchdog import Watchdog

BEHIND_S = 2.0  # of waiting, before a rank looks for one that left
LEFT_S = 5.0  # for a rank that left after an error: its earlier messages may still be under way
NAP_S = 1e-4
END = "the end of the session"


@dataclass(frozen=True)
class Note:
    """Record that a rank reached ``place``, or left before because of an ``error``."""

    rank: int
    steps: int  # begun so far
    meetings: int  # places reached where all meet, with this one
    place: str
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"rank {self.rank} has left the session in or after call {self.steps} of step ({self.error})"
        return f"rank {self.rank} has come to {self.place} after {self.steps} calls of step"


class Attendance:
    """Tell the other ranks when this rank leaves a session. The constructor is collective."""

    def __init__(self, transport: Transport, report_s: float) -> None:
        self.transport, self.tag, self.process = transport, transport.next_tag(), os.getpid()
        self.steps = self.meetings = self.noted = 0
        self.watchdog = Watchdog(transport, report_s, doomed=self.doomed)
        self.stack = ExitStack()

    def meet(self, place: str) -> None:
        """Note that this rank reached a place where all meet."""
        self.meetings += 1
        self.noted += self.send(place)
        self.transport.received_notes(self.tag)  # MPI need not keep them

    def send(self, place: str, error: str = "") -> bool:
        return self.transport.send_note(Note(self.transport.rank, self.steps, self.meetings, place, error), self.tag)

    def doomed(self, waited_s: float) -> str:
        """Return why this rank, after waiting ``waited_s``, will wait forever; "" if it may not."""
        here = f"in or after call {self.steps} of step"
        for note in self.transport.received_notes(self.tag) if waited_s >= BEHIND_S else ():
            if note.error and waited_s >= LEFT_S:
                return f"{here}, but {note}"
            if note.meetings > self.meetings and note.steps < self.steps:
                return f"{here}, but {note}: all ranks must call step equally often (such as by drop_last=True)"
        return ""

    def ends(self) -> None:
        if os.getpid() == self.process:
            last = getattr(sys, "last_value", "it came to its last line")
            self.send(END, f"its program has ended: {last!s:.200}")

    def __enter__(self) -> "Attendance":
        if self.transport.size > 1:
            atexit.register(self.ends)
            self.stack.callback(atexit.unregister, self.ends)
            self.stack.enter_context(self.watchdog)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self.stack:
            if error is not None and not isinstance(error, AgreedError):  # all ranks raise AgreedError together
                self.send(END, f"{type(error).__name__}: {error!s:.200}")
                return
        # All ranks leave together, and each has sent as many notes. An unread one could match a message on a later
        # communicator if MPI reuses the context. The watchdog, which also reads notes, has ended.
        while len(self.transport.received_notes(self.tag)) < self.noted * (self.transport.size - 1):
            time.sleep(NAP_S)
