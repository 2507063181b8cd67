"""What messages and updates do to each other, where they need the same processors: given, or measured by ``bench``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

from dear_mpi.bench.case import Row
from dear_mpi.reporting.units import parse_share
from dear_mpi.training.fabric.virtual import Slowdown

MOST_STALL = 10.0  # seconds for each second of updates
LEAST_US = 50.0  # of an update: of shorter ones it is noise, because to wake a thread takes about as long
ROOM = 2  # a collective must take so many times as long as the update, or the update's end has none beside it


NO_SLOWDOWN = Slowdown()


@dataclass(frozen=True)
class Length:
    """The slowdown of an update that alone takes ``update_s`` seconds; None: of an update of any length."""

    update_s: float | None = None
    slowdown: Slowdown = NO_SLOWDOWN

    def row(self) -> dict[str, float | None]:
        """For ``--json``."""
        return {"update_s": self.update_s, **self.slowdown._asdict()}


@dataclass(frozen=True)
class Contention:
    """How messages and updates slow each other down while they run at once. It depends on how long the update is.

    Attributes:
        lengths: those that are known, the shortest first. Updates that are shorter or longer than all of them are like
            the nearest; others lie between two, linearly in the logarithm of the length.
        origin: ``given``, ``measured``, or ``unknown`` where the rows of ``bench`` say nothing about it.
    """

    lengths: tuple[Length, ...] = (Length(),)
    origin: str = "given"

    @property
    def is_free(self) -> bool:
        """Whether neither delays the other."""
        return all(each.slowdown == NO_SLOWDOWN for each in self.lengths)

    def at(self, update_s: float) -> Slowdown:
        """Of an update that alone takes so long.

        >>> Contention((Length(0.001, Slowdown(1.5, 1.0)), Length(0.1, Slowdown(0.5, 2.0)))).at(0.01)
        Slowdown(stall=1.0, stretch=1.5)
        """
        if len(self.lengths) == 1 or update_s <= 0:
            return self.lengths[0].slowdown
        known = [math.log(each.update_s or 0.0) for each in self.lengths]
        figures = zip(*(each.slowdown for each in self.lengths), strict=True)
        return Slowdown(*(float(np.interp(math.log(update_s), known, each)) for each in figures))

    def __str__(self) -> str:
        stall, stretch = (span(each) for each in zip(*(each.slowdown for each in self.lengths), strict=True))
        known = [each.update_s * 1e3 for each in self.lengths if each.update_s is not None]
        length = f" of {span(known)} ms each" if known else ""
        return f"a second of updates{length} delays messages by {stall} s, and takes {stretch} s beside them"


def span(figures: Sequence[float]) -> str:
    """From the least to the largest.

    >>> span([0.5, 0.25, 0.31]), span([1.0])
    ('0.25 to 0.5', '1')
    """
    return " to ".join(dict.fromkeys(f"{each:.2g}" for each in (min(figures), max(figures))))


FREE = Contention()


def contention_of(rows: Sequence[Row]) -> Contention:
    """What the rows of ``dear-mpi bench --beside`` say: medians over the rows of each size.

    Noise may let an update seem to speed messages up: then there is no delay.
    """
    told = [
        (row.bytes, row.update_us, row.delay_us / row.update_us, row.update_beside_us / row.update_us)
        for row in rows
        if row.delay_us is not None
        and row.update_us is not None
        and row.update_beside_us is not None
        and LEAST_US <= row.update_us <= row.p50_us / ROOM
    ]
    by_size = groupby(sorted(told), lambda each: each[0])
    medians = sorted(tuple(map(median, list(zip(*same, strict=True))[1:])) for _, same in by_size)
    lengths = tuple(
        Length(update_us * 1e-6, Slowdown(max(0.0, stall), max(1.0, stretch))) for update_us, stall, stretch in medians
    )
    return Contention(lengths, "measured") if lengths else Contention(origin="unknown")


def parse_stall(text: str) -> Contention:
    """A share, as ``100%``: how long updates hold messages up, as a part of their own time.

    Raises:
        ValueError: it cannot be read, is below zero, or too large.
    """
    return Contention((Length(slowdown=Slowdown(parse_share("stall", text, MOST_STALL))),))
