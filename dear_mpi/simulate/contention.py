"""What messages and updates do to each other, where they need the same processors: given, or measured by ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dear_mpi.bench.case import Row
from dear_mpi.simulate.pace import share

__all__ = ["FREE", "Contention", "contention_of", "parse_stall"]

MOST_STALL = 10.0  # seconds for each second of updates
ROOM = 2  # a collective must take so many times as long as the update beside it, or that has no collective in the end


@dataclass(frozen=True)
class Contention:
    """How both slow each other down while they run at once.

    Attributes:
        stall: the seconds by which a second of updates delays what is on the wire.
        stretch: how many times as long an update takes.
        origin: ``given``, ``measured``, or ``unknown`` where the rows of ``bench`` say nothing about it.
    """

    stall: float = 0.0
    stretch: float = 1.0
    origin: str = "given"

    def __str__(self) -> str:
        return f"a second of updates delays messages by {self.stall:.2g} s, and takes {self.stretch:.2g} s beside them"


FREE = Contention()  # neither delays the other


def contention_of(rows: Sequence[Row]) -> Contention:
    """What the rows of ``dear-mpi bench --beside`` say: medians over rows.

    Noise may let an update seem to speed messages up: then there is no delay.
    """
    found = [
        (row.delay_us / row.update_us, row.update_beside_us / row.update_us)
        for row in rows
        if row.delay_us is not None and row.update_us and row.update_beside_us and row.p50_us >= ROOM * row.update_us
    ]
    if not found:
        return Contention(origin="unknown")
    stall, stretch = map(median, zip(*found, strict=True))
    return Contention(max(0.0, stall), max(1.0, stretch), "measured")


def parse_stall(text: str) -> Contention:
    """A share, as ``100%``: how long updates hold messages up, as a part of their own time.

    Raises:
        ValueError: it cannot be read, is below zero, or too large.
    """
    return Contention(share("stall", text, MOST_STALL))
