"""What a rank waits for at present: a thread that waits says so here, in two assignments, and a watchdog reads it."""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Protocol


class Awaited(Protocol):
    """What can be waited for."""

    def place(self) -> tuple[int, ...]:
        """The number of its collective, and how far that has come; empty if it is the last one that was begun.

        The same from look to look means that nothing moves.
        """

    def waits_for(self) -> str:
        """What it waits for, for a reader; "" while it does something itself."""


class Waits:
    """The present wait of a rank. Its thread writes, others only read, so there is no lock.

    ``number`` counts the collectives that were begun, which all ranks begin in the same order. ``notice`` is where the
    other ranks are told of it (``launch/neighbours.py``).
    """

    def __init__(self, notice: Any) -> None:
        self.now: Awaited | None = None
        self.number = 0
        self.notice = notice

    def meet(self, what: str) -> None:
        """This thread begins to wait for all ranks; ``now`` is to be None when they have come."""
        self.number += 1
        self.now = Meeting(what)


class Meeting:
    """All ranks come together for ``what``. The stack of the thread that waits names the caller."""

    def __init__(self, what: str) -> None:
        self.what, self.thread = what, threading.get_ident()

    def place(self) -> tuple[int, ...]:
        return ()

    def waits_for(self) -> str:
        frame = sys._current_frames().get(self.thread)
        return f"all ranks: {self.what}{'' if frame is None else caller(frame)}"


def caller(frame: FrameType) -> str:
    """The code that called the transport."""
    here: FrameType | None = frame
    while here is not None and {"transports", "threading.py"} & set(Path(here.f_code.co_filename).parts):
        here = here.f_back
    return "" if here is None else f", in {here.f_code.co_name} ({Path(here.f_code.co_filename).name}:{here.f_lineno})"
