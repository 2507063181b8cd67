"""How far the ranks' clocks are apart, found out by messages there and back; and one clock for all: that of rank 0.

    rank 0   begin ----.                   .----> end
                        \\                 /
    rank r               `---> reading ---'

The reading was taken between ``begin`` and ``end``; the middle is wrong by half the round trip at most. Of many rounds
the shortest counts (Cristian, Distributed Computing 3, 1989).

    offset of a rank |            . o        o  found now and then, which is a look;
                     |     o . '             between, the line through two; its slope is the drift
                     +-----------------> time

``CommonClock`` tells the time now. ``Aligned`` is for times that were noted before, between its two looks: the farther
a time is from a look, the less is known. Without a second look a clock may drift by ``DRIFT``, with one by what the
looks leave open and by ``WANDER``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import machine

ROUNDS = 100


@dataclass(frozen=True)
class Offset:
    """The clock of a rank shows ``seconds`` more than that of rank 0, give or take ``uncertainty_s``."""

    seconds: float
    uncertainty_s: float  # half of the shortest round trip, by the clock of rank 0
    at_s: float = field(default=0.0, compare=False)  # when, by the clock of the rank itself; not of rank 0

    def is_beyond(self, other: "Offset") -> bool:
        """Whether two clocks differ for sure: by more than both uncertainties together."""
        return abs(self.seconds - other.seconds) > self.uncertainty_s + other.uncertainty_s


def offsets(
    transport: Transport, clock: Callable[[], float] = time.perf_counter, *, rounds: int = ROUNDS
) -> list[Offset]:
    """Collective: the offset of each rank's clock, in the order of ranks, the same on all; rank 0 has 0.

    Rank 0 meets one rank after the other, for ``rounds`` round trips of 8 bytes, while the others leave their cores. An
    offset is of the moment at which it was taken: clocks drift by up to 100 us a second.

    Args:
        clock: seconds since any time: ``time.perf_counter``, or ``time.time``, whose floats are 0.2 us apart.
    """
    tag, found = transport.next_tag(), [Offset(0.0, 0.0)]
    for peer in range(1, transport.size):
        if transport.rank == 0:
            found.append(ask(transport, peer, tag, clock, rounds))
        elif transport.rank == peer:
            answer(transport, tag, clock, rounds)
        transport.barrier(asleep=True)
    agreed: list[Offset] = transport.gather_values(found)[0]
    return agreed


def ask(transport: Transport, peer: int, tag: int, clock: Callable[[], float], rounds: int) -> Offset:
    """What rank 0 does."""
    question, reading = np.zeros(1), np.zeros(1)
    sends, receives = transport.send_init(question, peer, tag), transport.recv_init(reading, peer, tag)
    best = Offset(0.0, float("inf"))
    for _ in range(rounds):
        begin_s = clock()
        receives.Start()
        sends.Start()
        sends.Wait()
        receives.Wait()
        end_s = clock()
        if 0 <= end_s - begin_s < 2 * best.uncertainty_s:  # below 0 if the clock was set meanwhile
            at_s = float(reading[0])
            best = Offset(at_s - (begin_s + end_s) / 2, (end_s - begin_s) / 2, at_s)
    sends.Free()
    receives.Free()
    return best


def answer(transport: Transport, tag: int, clock: Callable[[], float], rounds: int) -> None:
    """What the rank does that rank 0 asks."""
    question, reading = np.zeros(1), np.zeros(1)
    sends, receives = transport.send_init(reading, 0, tag), transport.recv_init(question, 0, tag)
    for _ in range(rounds):
        receives.Start()
        receives.Wait()
        reading[0] = clock()
        sends.Start()
        sends.Wait()
    sends.Free()
    receives.Free()


APART_S = 0.5  # two looks that are closer do not tell a drift: their uncertainties are all that is seen
DRIFT = 200e-6  # s/s: more than two clocks drift by themselves, 100 us a second each
WANDER = 1e-6  # s/s: how much a drift changes, as the temperature does


@dataclass(frozen=True)
class Look:
    """This rank's clock showed ``at_s``, and ``offset_s`` more than that of rank 0, give or take ``uncertainty_s``."""

    at_s: float
    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True)
class Aligned:
    """``looks``: the first and the last one; none where all ranks have one clock."""

    looks: tuple[Look, ...] = ()

    @property
    def seconds(self) -> float:
        """Between the looks."""
        return self.looks[-1].at_s - self.looks[0].at_s if self.looks else 0.0

    @property
    def drift(self) -> float:
        if self.seconds < APART_S:
            return 0.0
        return (self.looks[-1].offset_s - self.looks[0].offset_s) / self.seconds

    def offset_s(self, at_s: float) -> float:
        """By how much this rank's clock was ahead when it showed ``at_s``."""
        if not self.looks:
            return 0.0
        last = self.looks[-1]
        return last.offset_s + self.drift * (at_s - last.at_s)

    def uncertainty_s(self, at_s: float) -> float:
        """By which that may be wrong."""
        if not self.looks:
            return 0.0
        found_s = [look.uncertainty_s for look in self.looks]
        known = self.seconds >= APART_S
        rate = min(DRIFT, sum(found_s) / self.seconds + WANDER) if known else DRIFT
        return max(found_s) + rate * min(abs(at_s - look.at_s) for look in self.looks)

    def doubt(self) -> str:
        """Why the offset cannot be known; nothing if it can."""
        if not all(isfinite(look.uncertainty_s) for look in self.looks):
            return "no message came back from rank 0 without its clock being set meanwhile"
        if not self.looks:
            return ""
        first, last = self.looks[0], self.looks[-1]
        moved_s = abs(last.offset_s - first.offset_s) - first.uncertainty_s - last.uncertainty_s
        if moved_s > DRIFT * self.seconds:
            return f"its clock moved by {moved_s:.3g} s in {self.seconds:.3g} s, so it was set meanwhile"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"looks": [asdict(look) for look in self.looks]}


def aligned_of(content: Mapping[str, Sequence[Mapping[str, float]]]) -> Aligned:
    """What ``as_dict`` gave."""
    return Aligned(tuple(Look(**look) for look in content["looks"]))


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
