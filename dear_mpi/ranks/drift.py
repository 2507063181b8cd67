"""One clock for all ranks: that of rank 0, which every rank knows from its own.

    offset of a rank |            . o        found now and then (clock.py), o;
                     |     o . '             between, the line through two; its slope is the drift
                     +-----------------> time

Where the ranks of a job run on one machine, its clock is that of all, and there is nothing more to find out.
"""

import time
from collections.abc import Callable
from typing import Any

from dear_mpi.collectives.transports.patience import machine
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.ranks.aligned import APART_S, Aligned, Look
from dear_mpi.ranks.clock import offsets

REMEMBERED_S = 30.0  # a drift changes with the temperature


class CommonClock:
    """The clock of rank 0 on each rank: that of this rank, less ``offset_s()``. Constructing is collective.

    Args:
        now: seconds since any time, by the clock of this rank.
    """

    def __init__(self, transport: Transport, now: Callable[[], float] = time.perf_counter) -> None:
        self.transport, self.now, self.is_one = transport, now, False
        self.looks: list[Look] = []
        self.drift, self.residual_s = 0.0, 0.0
        self.look()
        alike = abs(self.looks[0].offset_s) <= self.looks[0].uncertainty_s  # a container may have a clock of its own
        machines, clocks = zip(*transport.gather_values((machine(), alike)), strict=True)
        if len(set(machines)) == 1 and all(clocks):
            self.is_one, self.looks = True, []
        self.first = self.looks[:1]

    def look(self) -> None:
        """Collective: find out this rank's offset anew, and how far the line was off (``residual_s`` has the most)."""
        if self.is_one:
            return
        found = offsets(self.transport, self.now)[self.transport.rank]
        now_s = found.at_s or self.now()  # of rank 0 it does not matter
        if self.looks:
            self.residual_s = max(self.residual_s, abs(found.seconds - self.offset_s()))
        self.looks = [each for each in self.looks if now_s - each.at_s < REMEMBERED_S]
        self.looks.append(Look(now_s, found.seconds, found.uncertainty_s))
        first = self.looks[0]
        if now_s - first.at_s >= APART_S:
            self.drift = (found.seconds - first.offset_s) / (now_s - first.at_s)

    def offset_s(self) -> float:
        """By how much this rank's clock is ahead of rank 0's now."""
        if not self.looks:
            return 0.0
        last = self.looks[-1]
        return last.offset_s + self.drift * (self.now() - last.at_s)

    def aligned(self) -> Aligned:
        """For times that were noted since the first look."""
        return Aligned((*self.first, *self.looks[-1:]) if self.transport.rank else ())

    def report(self) -> dict[str, Any]:
        """Collective: the largest of all ranks, in s; the drift in s/s."""
        mine = (
            abs(self.looks[-1].offset_s) if self.looks else 0.0,
            self.looks[-1].uncertainty_s if self.looks else 0.0,
            abs(self.drift),
            self.residual_s,
        )
        worst = map(max, zip(*self.transport.gather_values(mine), strict=True))
        names = ("offset_s", "uncertainty_s", "drift", "residual_s")
        return {"one_clock": self.is_one, **dict(zip(names, worst, strict=True))}
