"""What messages and updates do to each other, where they need the same processors: given, or measured by ``bench``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from statistics import median

import numpy as np

from dear_mpi.bench.machine_file import Row
from dear_mpi.reporting.units import parse_share

MOST_STALL = 10.0  # seconds for each second of updates
LEAST_US = 50.0  # of an update: of shorter ones it is noise, because to wake a thread takes about as long
ROOM = 2  # a collective must take so many times as long as the update, or the update's end has none beside it


@dataclass(frozen=True)
class Contention:
    """How messages and updates slow each other down while they run at once. It depends on how long the update is.

    Attributes:
        stall: seconds by which each second of an update delays what is on the wire, for each known length.
        stretch: how many times as long the update takes, for each of them.
        update_s: the known lengths: seconds of updates alone, the shortest first. Shorter and longer ones are like the
            nearest; others lie between two, linearly in the logarithm of the length. Empty: all updates are alike.
        layers: seconds by which each second of a layer delays what is on the wire.
        origin: ``given``, ``measured``, or ``unknown`` where the rows of ``bench`` say nothing about it.
    """

    stall: tuple[float, ...] = (0.0,)
    stretch: tuple[float, ...] = (1.0,)
    update_s: tuple[float, ...] = ()
    origin: str = "given"
    layers: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether neither delays the other."""
        return set(self.stall) == {0.0} and set(self.stretch) == {1.0} and not self.layers

    def __call__(self, update_s: float) -> tuple[float, float]:
        """Stall and stretch of an update that alone takes so long.

        >>> Contention((1.5, 0.5), (1.0, 2.0), (0.001, 0.1))(0.01)
        (1.0, 1.5)
        """
        if len(self.stall) == 1 or update_s <= 0:
            return self.stall[0], self.stretch[0]
        length, known = math.log(update_s), list(map(math.log, self.update_s))
        return float(np.interp(length, known, self.stall)), float(np.interp(length, known, self.stretch))

    def rows(self) -> list[dict[str, float | None]]:
        """For ``--json``: one for each length, which is None if all are alike."""
        found = zip_longest(self.update_s, self.stall, self.stretch)
        return [dict(zip(("update_s", "stall", "stretch"), each, strict=True)) for each in found]

    def __str__(self) -> str:
        length = f" of {span([1e3 * each for each in self.update_s])} ms each" if self.update_s else ""
        delays = f"a second of updates{length} delays messages by {span(self.stall)} s"
        layers = f"; a second of layers delays them by {self.layers:.2g} s" * bool(self.layers)
        return f"{delays}, and takes {span(self.stretch)} s beside them{layers}"


FREE = Contention()
ALL_STALL = Contention((1.0,))  # both need the same processors


def span(figures: Sequence[float]) -> str:
    """From the least to the largest.

    >>> span([0.5, 0.25, 0.31]), span([1.0])
    ('0.25 to 0.5', '1')
    """
    return " to ".join(dict.fromkeys(f"{each:.2g}" for each in (min(figures), max(figures))))


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
    if not medians:
        return Contention(origin="unknown")
    update_us, stall, stretch = zip(*medians, strict=True)
    return Contention(
        stall=tuple(max(0.0, each) for each in stall),
        stretch=tuple(max(1.0, each) for each in stretch),
        update_s=tuple(1e-6 * each for each in update_us),
        origin="measured",
    )


def parse_stall(text: str) -> Contention:
    """A share, as ``100%``: how long updates hold messages up, as a part of their own time; after a comma that of
    layers, if they do; or a ValueError.

    >>> parse_stall("100%"), parse_stall("100%,30%").layers
    (Contention(stall=(1.0,), stretch=(1.0,), update_s=(), origin='given', layers=0.0), 0.3)
    """
    updates, comma, layers = text.partition(",")
    held = parse_share("stall", layers, MOST_STALL) if comma else 0.0
    return Contention((parse_share("stall", updates, MOST_STALL),), layers=held)
