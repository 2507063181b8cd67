"""A rank that leaves a session tells the others, so that none waits for it for ever.

    rank 0    step 3 -- leaves: sends a note, and waits for the others -------- ends
    rank 1    step 3 -- step 4: waits for rank 0, and after seconds reads the note: ends the job

A note is sent without waiting for its readers, and read only by a rank that has waited for a while, so an iteration
costs the same as without. A rank that is merely slow has sent none: the others wait for it, and report that.
"""

import atexit
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.watchdog import Watchdog

BEHIND_S = 2.0  # of waiting, before a rank looks for one that went elsewhere instead of beginning the same step
LEFT_S = 5.0  # the same for one that has left after an error: what it had sent before may still be on its way
NAP_S = 1e-4
END = "the end of the session"


@dataclass(frozen=True)
class Note:
    """A rank comes to ``place``; ``error`` is why it left, if it did not leave with the others."""

    rank: int
    steps: int  # how many it has begun
    meetings: int  # how many places it has come to where all ranks meet, this one included
    place: str
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"rank {self.rank} has left the session in or after call {self.steps} of step ({self.error})"
        return f"rank {self.rank} has come to {self.place} after {self.steps} calls of step"


class Attendance:
    """Tell the other ranks when this rank leaves a session. Constructing is collective: all ranks take the same tag.

    Args:
        report_s: report when this rank has waited for so long; infinity for never.
    """

    def __init__(self, transport: Transport, report_s: float) -> None:
        self.transport, self.tag, self.process = transport, transport.next_tag(), os.getpid()
        self.steps = self.meetings = self.noted = 0
        self.watchdog = Watchdog(transport, report_s, doomed=self.doomed)
        self.stack = ExitStack()

    def meet(self, place: str) -> None:
        """This rank comes to a place where all ranks must come after as many steps."""
        self.meetings += 1
        self.noted += self.send_note(place)
        self.transport.received_notes(self.tag)  # receives what has come, so that MPI need not keep it

    def send_note(self, place: str, error: str = "") -> bool:
        return self.transport.send_note(Note(self.transport.rank, self.steps, self.meetings, place, error), self.tag)

    def drain(self) -> None:
        """Receive all notes of a session that all ranks leave alike: each has sent as many as this one by now.

        One left behind could meet another message, on a later communicator to which MPI gives the same context.
        """
        while len(self.transport.received_notes(self.tag)) < self.noted * (self.transport.size - 1):
            time.sleep(NAP_S)

    def doomed(self, waited_s: float) -> str:
        """Why this rank, which has waited for so long, will wait for ever; "" if it may not."""
        if waited_s >= BEHIND_S:
            here = f"in or after call {self.steps} of step"
            for note in self.transport.received_notes(self.tag):
                if note.error and waited_s >= LEFT_S:
                    return f"{here}, but {note}"
                if note.meetings > self.meetings and note.steps < self.steps:
                    return f"{here}, but {note}: all ranks must call step equally often (such as by drop_last=True)"
        return ""

    def ends(self) -> None:
        """The program ends without leaving the session."""
        if os.getpid() == self.process:
            last = getattr(sys, "last_value", "it came to its last line")
            self.send_note(END, f"its program has ended: {last!s:.200}")

    def __enter__(self) -> "Attendance":
        if self.transport.size > 1:
            atexit.register(self.ends)
            self.stack.callback(atexit.unregister, self.ends)
            self.stack.enter_context(self.watchdog)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.stack:
            if error is not None and not isinstance(error, AgreedError):  # which all ranks raise alike
                self.send_note(END, f"{type(error).__name__}: {error!s:.200}")
                return
        self.drain()  # when the watchdog, which reads notes as well, is over
