"""A rank that is late now and then: who it is, judged by calls that took far longer than most.

In such a call the late rank takes long, and so do all that wait for it: times of ranks alone seldom tell who it was. Of
a recorded call (``recorded_calls.py``) it is also known how long each rank was outside of waits for messages, where no
other rank can keep it, and whom the others waited for. A rank is named only if most of the slowest calls lead back to
it, and more of them than chance would have. Otherwise it is only said that there are slow calls.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from dear_mpi.bench.found.about import About
from dear_mpi.kernels.array import Array

OFTEN, FEWEST = 0.05, 2  # of the samples, and how many of them: fewer slow ones are not looked at
SLOW = 2.0  # medians: no rank is named because of calls that took less
MOST_OF = 2 / 3  # of the slowest calls must lead back to a rank that is named
CHANCE = 1e-3  # that so many would, if each rank were late as often


class Blame(NamedTuple):
    """A rank that was late, and by how much."""

    rank: int
    seconds: float


class Slow(NamedTuple):
    """A slow call: by how much it took longer than mostly, and who was late; None if that cannot be told."""

    seconds: float
    blame: Blame | None


@dataclass(frozen=True)
class Late(About):
    """A row with slow samples. ``rank`` is None if it cannot be told who was late."""

    spikes: float  # the part of the samples that took over 1.5 times the median
    rank: int | None = None
    how: str = ""  # it was found out: recorded (in more calls), or times (of the samples)
    calls: int = 0  # of which this is known
    slow_calls: int = 0  # the slowest ones, by which it is judged
    late_calls: int = 0  # of these, those that lead back to the rank
    late_us: float | None = None  # the median of them
    crowded: bool = False  # whether some machine has more ranks than cores for them: a rank may wait for one

    def text(self, varied: Sequence[str] = ()) -> str:
        """Such as: ring, 4 KiB: rank 2 was late in 10 % of 200 more calls, by a median of 5.1 ms: 20 of the 21 slowest
        lead back to it."""
        assert self.late_us is not None, "there is a rank to name"
        late = f"{self.late_us / 1e3:.1f} ms" if self.late_us >= 1e3 else f"{self.late_us:.0f} us"
        often = f"{self.late_calls / self.calls:.0%}".replace("%", " %")
        said = f"{self.name(varied)}: rank {self.rank} was late in {often} of"
        of_slow = f"{self.late_calls} of the {self.slow_calls} slowest"
        crowded = " (ranks share cores here: it may have waited for one)" * self.crowded
        if self.how == "times":
            return f"{said} {self.calls} samples, by a median of {late}: in {of_slow} it alone took longer{crowded}"
        return f"{said} {self.calls} more calls, by a median of {late}: {of_slow} lead back to it{crowded}"


def slow_calls(times_s: Array) -> Array:
    """The numbers of calls (columns; a row per rank) that took far longer than most, on their slowest rank. In smaller
    delays one rank is often behind only because an algorithm gives it more to do."""
    job_s = times_s.max(axis=0)
    found: Array = np.flatnonzero(job_s > SLOW * np.median(job_s))
    return found


def excess(times_s: Array) -> Array:
    """By how much each rank took longer in each call than in its median call."""
    found: Array = times_s - np.median(times_s, axis=1, keepdims=True)
    return found


def only_one(excess_s: Array, due_s: float) -> Blame | None:
    """The only rank that was late by at least half of what is due."""
    ranks = np.flatnonzero(2 * excess_s >= due_s)
    return Blame(int(ranks[0]), float(excess_s[ranks[0]])) if len(ranks) == 1 else None


def by_times(times_s: Array) -> list[Slow]:
    """The slow calls, each with the rank that took longer alone. Where all wait for all, nobody else was late: a rank
    that is late for its start makes all others take longer. Of two ranks it would make one take longer."""
    late_s, ranks = excess(times_s), len(times_s)
    found = []
    for call in slow_calls(times_s):
        due_s = float(late_s[:, call].max())
        found.append(Slow(due_s, only_one(late_s[:, call], due_s) if ranks > 2 else None))
    return found


def named(found: Sequence[Slow], ranks: int) -> Sequence[Slow]:
    """The slowest calls, most of which lead back to one rank; none if chance may have named it.

    How many are the slowest is tried: what is late by milliseconds stands out from many small delays.
    """
    ordered = sorted(found, key=lambda slow: -slow.seconds)
    tries = [ordered[:count] for count in range(1, len(ordered) + 1)]
    # Tries contain each other: about as many as there are doublings say something of their own.
    sure = [tried for tried in tries if len(tries).bit_length() * by_chance(tried, ranks) <= CHANCE]
    return max(sure, key=lambda tried: (most_blamed(tried) / len(tried), len(tried)), default=[])


def most_blamed(found: Sequence[Slow]) -> int:
    """How many lead back to the same rank."""
    return max(Counter(slow.blame.rank for slow in found if slow.blame).values(), default=0)


def by_chance(found: Sequence[Slow], ranks: int) -> float:
    """The probability that so many of them lead back to any one rank, if each were late as often; 1 if few do."""
    count = most_blamed(found)
    if ranks == 1 or count < MOST_OF * len(found):
        return 1.0
    return ranks * at_least(count, len(found), 1 / ranks)


def at_least(count: int, of: int, share: float) -> float:
    """The probability of so many hits or more."""
    return sum(comb(of, hits) * share**hits * (1 - share) ** (of - hits) for hits in range(count, of + 1))


def blamed_rank(found: Sequence[Slow], ranks: int, calls: int, how: str) -> dict[str, Any]:
    """What ``Late`` has of so many calls, whose slow ones these are; nothing if no rank is to be named."""
    slowest = named(found, ranks)
    blames = [slow.blame for slow in slowest if slow.blame]
    if not blames:
        return {}
    (rank, count), *_ = Counter(blame.rank for blame in blames).most_common(1)
    late_us = median(blame.seconds * 1e6 for blame in blames if blame.rank == rank)
    counted = {"calls": calls, "slow_calls": len(slowest), "late_calls": count}
    return {"rank": rank, "how": how, "late_us": late_us, **counted}
