r"""Measure the offsets between ranks' clocks by round trips, and provide one clock: rank 0's.

    rank 0   begin ----.                   .----> end
                        \                 /
    rank r               `---> reading ---'

The reading lies between ``begin`` and ``end``; the middle's error is at most half the round trip. The shortest of many
rounds counts (Cristian, Distributed Computing 3, 1989).

    offset of a rank |            . o        o  a measurement;
                     |     o . '             between measurements, the line through two; its slope is the drift
                     +-----------------> time

Uncertainty grows with the distance from a measurement: by ``DRIFT``, or with two by their uncertainty and ``WANDER``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import machine

ROUNDS = 100
APART_S = 0.5  # closer measurements show no drift
DRIFT = 200e-6  # s/s: more than two clocks can drift, 100 us a second each
WANDER = 1e-6  # s/s: a drift's change with temperature
REMEMBERED_S = 30.0  # a drift changes with the temperature


@dataclass(frozen=True)
class Offset:
    """At ``at_s``, by a rank's clock, it was ``offset_s`` ahead of rank 0's, within ``uncertainty_s``."""

    at_s: float
    offset_s: float
    uncertainty_s: float  # half of the shortest round trip


NO_OFFSET = Offset(0.0, 0.0, 0.0)


def offsets(
    transport: Transport, clock: Callable[[], float] = time.perf_counter, *, rounds: int = ROUNDS
) -> list[Offset]:
    """Collective: return a measurement of each rank's clock; rank 0's is ``NO_OFFSET``.

    Rank 0 exchanges ``rounds`` round trips of 8 bytes with each rank; the others sleep.
    """
    tag, found = transport.next_tag(), [NO_OFFSET]
    for peer in range(1, transport.size):
        if transport.rank in (0, peer):
            own = pingpong(transport, peer, tag, clock, rounds)
            found += [own] if transport.rank == 0 else []
        transport.barrier(asleep=True)
    agreed: list[Offset] = transport.gather_values(found)[0]
    return agreed


def pingpong(transport: Transport, peer: int, tag: int, clock: Callable[[], float], rounds: int) -> Offset:
    """Measure a peer's offset, on rank 0; the peer answers by its clock."""
    asks, sent, received = transport.rank == 0, np.zeros(1), np.zeros(1)
    other = peer if asks else 0
    sends, receives = transport.send_init(sent, other, tag), transport.recv_init(received, other, tag)
    best = Offset(0.0, 0.0, inf)
    for _ in range(rounds):
        begin_s = clock() if asks else 0.0
        receives.Start()
        if asks:
            sends.Start()
            sends.Wait()
            receives.Wait()
            end_s = clock()
            if 0 <= end_s - begin_s < 2 * best.uncertainty_s:  # below 0 if the clock was set
                at_s = float(received[0])
                best = Offset(at_s, at_s - (begin_s + end_s) / 2, (end_s - begin_s) / 2)
        else:
            receives.Wait()
            sent[0] = clock()
            sends.Start()
            sends.Wait()
    sends.Free()
    receives.Free()
    return best


@dataclass(frozen=True)
class Aligned:
    """Offsets from the first of ``offsets`` to the last; none if ranks share a clock."""

    offsets: tuple[Offset, ...] = ()

    @property
    def seconds(self) -> float:
        return self.offsets[-1].at_s - self.offsets[0].at_s if self.offsets else 0.0

    @property
    def drift(self) -> float:
        if self.seconds < APART_S:
            return 0.0
        return (self.offsets[-1].offset_s - self.offsets[0].offset_s) / self.seconds

    def offset_s(self, at_s: float) -> float:
        last = self.offsets[-1] if self.offsets else NO_OFFSET
        return last.offset_s + self.drift * (at_s - last.at_s)

    def uncertainty_s(self, at_s: float) -> float:
        if not self.offsets:
            return 0.0
        found_s = [each.uncertainty_s for each in self.offsets]
        known = self.seconds >= APART_S
        rate = min(DRIFT, sum(found_s) / self.seconds + WANDER) if known else DRIFT
        return max(found_s) + rate * min(abs(at_s - each.at_s) for each in self.offsets)

    def doubt(self) -> str:
        """Return why the offset is unknown, or ""."""
        if not all(isfinite(each.uncertainty_s) for each in self.offsets):
            return "no message came back from rank 0 without its clock being set meanwhile"
        if not self.offsets:
            return ""
        first, last = self.offsets[0], self.offsets[-1]
        moved_s = abs(last.offset_s - first.offset_s) - first.uncertainty_s - last.uncertainty_s
        if moved_s > DRIFT * self.seconds:
            return f"its clock moved by {moved_s:.3g} s in {self.seconds:.3g} s, so it was set meanwhile"
        return ""


class CommonClock:
    """Rank 0's clock on each rank: ``now() - offset_s()``. Constructing it is collective."""

    def __init__(self, transport: Transport, now: Callable[[], float] = time.perf_counter) -> None:
        self.transport, self.now, self.is_one = transport, now, False
        self.recent, self.residual_s = Aligned(), 0.0
        self.look()
        self.first = self.recent.offsets
        alike = abs(self.first[0].offset_s) <= self.first[0].uncertainty_s  # a container may have its clock
        machines, clocks = zip(*transport.gather_values((machine(), alike)), strict=True)
        if len(set(machines)) == 1 and all(clocks):
            self.is_one, self.recent, self.first = True, Aligned(), ()

    def look(self) -> None:
        """Collective: measure this rank's offset and the line's error (``residual_s``: the largest)."""
        if self.is_one:
            return
        found = offsets(self.transport, self.now)[self.transport.rank]
        found = replace(found, at_s=found.at_s or self.now())  # irrelevant on rank 0
        if self.recent.offsets:
            self.residual_s = max(self.residual_s, abs(found.offset_s - self.offset_s()))
        kept = (each for each in self.recent.offsets if found.at_s - each.at_s < REMEMBERED_S)
        self.recent = Aligned((*kept, found))

    def offset_s(self) -> float:
        return self.recent.offset_s(self.now())

    def aligned(self) -> Aligned:
        return Aligned((*self.first, *self.recent.offsets[-1:]) if self.transport.rank else ())

    def report(self) -> dict[str, Any]:
        """Collective: return the largest values over ranks, in s; drift in s/s."""
        last = self.recent.offsets[-1] if self.recent.offsets else NO_OFFSET
        mine = (abs(last.offset_s), last.uncertainty_s, abs(self.recent.drift), self.residual_s)
        worst = map(max, zip(*self.transport.gather_values(mine), strict=True))
        names = ("offset_s", "uncertainty_s", "drift", "residual_s")
        return {"one_clock": self.is_one, **dict(zip(names, worst, strict=True))}
