"""What messages and updates do to each other, where they need the same processors: given, or measured by ``bench``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import numpy as np

from dear_mpi.bench.case import Row
from dear_mpi.simulate.pace import share

__all__ = ["FREE", "Beside", "Contention", "contention_of", "parse_stall"]

MOST_STALL = 10.0  # seconds for each second of updates
ROOM = 2  # a collective must take so many times as long as the update beside it, or that has no collective in the end


@dataclass(frozen=True)
class Beside:
    """How an update of some length, and messages beside it, slow each other down.

    Attributes:
        update_s: seconds of the update alone.
        stall: the seconds by which each of them delays what is on the wire.
        stretch: how many times as long the update takes.
    """

    update_s: float = 0.0
    stall: float = 0.0
    stretch: float = 1.0


@dataclass(frozen=True)
class Contention:
    """How both slow each other down while they run at once, by the length of the update.

    A short update may end before the system gives its processor to anyone else, so it can delay messages by more than
    its own length. A long one shares it.

    Attributes:
        samples: for some lengths, the shortest first; shorter and longer updates are like the nearest of them, others
            lie between two, linearly in the logarithm of the length.
        origin: ``given``, ``measured``, or ``unknown`` where the rows of ``bench`` say nothing about it.
    """

    samples: tuple[Beside, ...] = (Beside(),)
    origin: str = "given"

    @property
    def is_free(self) -> bool:
        """Whether neither delays the other."""
        return all(each.stall == 0 and each.stretch == 1 for each in self.samples)

    def at(self, update_s: float) -> tuple[float, float]:
        """The stall and the stretch of an update that alone takes so long.

        >>> Contention((Beside(0.001, 1.5, 1.0), Beside(0.1, 0.5, 2.0))).at(0.01)
        (1.0, 1.5)
        """
        if len(self.samples) == 1 or update_s <= 0:
            return self.samples[0].stall, self.samples[0].stretch
        lengths = [np.log(each.update_s) for each in self.samples]
        figures = ([each.stall for each in self.samples], [each.stretch for each in self.samples])
        stall, stretch = (float(np.interp(np.log(update_s), lengths, each)) for each in figures)
        return stall, stretch

    def __str__(self) -> str:
        spans = zip(*((each.update_s * 1e3, each.stall, each.stretch) for each in self.samples), strict=True)
        update, stall, stretch = (" to ".join(dict.fromkeys(f"{each:.2g}" for each in (s[0], s[-1]))) for s in spans)
        length = f" (of updates of {update} ms)" * (len(self.samples) > 1)
        return f"a second of updates{length} delays messages by {stall} s, and takes {stretch} s beside them"


FREE = Contention()


def contention_of(rows: Sequence[Row]) -> Contention:
    """What the rows of ``dear-mpi bench --beside`` say: medians over the rows of each size.

    Noise may let an update seem to speed messages up: then there is no delay.
    """
    told = [
        (row.bytes, row.update_us, row.delay_us / row.update_us, row.update_beside_us / row.update_us)
        for row in rows
        if row.delay_us is not None and row.update_us and row.update_beside_us and row.p50_us >= ROOM * row.update_us
    ]
    samples = []
    for _, same in groupby(sorted(told), lambda each: each[0]):
        update_us, stall, stretch = map(median, list(zip(*same, strict=True))[1:])
        samples.append(Beside(update_us * 1e-6, max(0.0, stall), max(1.0, stretch)))
    samples.sort(key=lambda each: each.update_s)
    return Contention(tuple(samples), "measured") if samples else Contention(origin="unknown")


def parse_stall(text: str) -> Contention:
    """A share, as ``100%``: how long updates hold messages up, as a part of their own time.

    Raises:
        ValueError: it cannot be read, is below zero, or too large.
    """
    return Contention((Beside(stall=share("stall", text, MOST_STALL)),))
