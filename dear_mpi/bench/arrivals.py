"""Delay ranks before a call, as in programs whose ranks compute for different times.

    rank 0   |call . . . . . . . . . . . . . .|
    rank 1   |- - - - its delay - - - -|call . . . . .|
             common start              last arrival   end on the slowest rank: a sample is the time between the two

An algorithm that works while it waits has little left after the last arrival; a ring has everything left. A turn's
number determines its delays: all ranks know them, and they are equal for all candidates and runs. All candidates of a
case share one longest delay, by default the median over candidates of the medians of balanced calls: a slow collective
does not make a program later. The last arrival is measured: a rank that sleeps, or loses its core, is a little later.

Source: patterns and their effect: Faraj, Patarasuk and Yuan, A Study of Process Arrival Patterns for MPI Collective
Operations (International Journal of Parallel Programming 36, 2008). One late rank, and random delays: Proficz,
Improving Allreduce Collective Operations for Imbalanced Process Arrival Patterns (Journal of Supercomputing 74, 2018).
Reductions: Marendic, Lemeire, Vucinic and Schelkens, A Novel MPI Reduction Algorithm Resilient to Imbalances in Process
Arrival Times (Journal of Supercomputing 72, 2016); Parsons and Pai, Exploiting Process Imbalance to Improve MPI
Collective Operations in Hierarchical Systems (ICS 2015).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.bench.machine_file import BALANCED, Row
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import SECONDS, check_distinct, parse
from dear_mpi.training.declared import Declared, listed, option, parsed

MOST_S = 10.0  # the longest delay that a user may ask for
CLOSE_S = 100e-6  # a sleeping rank begins to spin this long before its moment
ARRIVAL_HELP = (
    "Also measure calls with late ranks: one-late (another rank each turn), ramp (evenly spread), random; "
    "several with commas. one-late:2ms gives the longest delay, else it is the median time of balanced calls. Times "
    "count from the last arrival"
)


def one_late(turn: int, ranks: int) -> list[float]:
    """Delay one rank fully: each rank once in ``ranks`` turns, in another order each time."""
    late = random.Random(f"one-late {turn // ranks}").sample(range(ranks), ranks)[turn % ranks]
    return [float(rank == late) for rank in range(ranks)]


def ramp(turn: int, ranks: int) -> list[float]:
    """Delay ranks by evenly growing times, in another order of ranks each turn."""
    return [place / max(1, ranks - 1) for place in random.Random(f"ramp {turn}").sample(range(ranks), ranks)]


def uniform(turn: int, ranks: int) -> list[float]:
    drawn = random.Random(f"random {turn}")
    return [drawn.random() for _ in range(ranks)]


# Returns the delays of all ranks in a turn, as shares of the longest one.
PATTERNS: dict[str, Callable[[int, int], list[float]]] = {
    BALANCED: lambda turn, ranks: [0.0] * ranks,
    "one-late": one_late,
    "ramp": ramp,
    "random": uniform,
}


@dataclass
class Wait:
    """The delay of a rank before its call."""

    delay_s: float  # from the common start
    asleep: bool
    came_s: float = 0.0  # when the rank really came, from the common start

    def since(self, begin_s: float) -> None:
        """Return when the delay is over; ``begin_s`` is its start by ``perf_counter``."""
        clock, end_s = time.perf_counter, begin_s + self.delay_s
        if self.asleep:
            while (left_s := end_s - clock()) > CLOSE_S:
                time.sleep(left_s - CLOSE_S)
        while (now_s := clock()) < end_s:
            pass
        self.came_s = now_s - begin_s


def after_last(ranks: Sequence[Sequence[tuple[float, float]]]) -> list[list[float]]:
    """Convert each rank's ends and arrivals to times from the last arrival to the end, at least 0.

    >>> after_last([[(5.0, 0.0)], [(6.0, 4.0)], [(3.0, 0.0)]])
    [[1.0], [2.0], [0.0]]
    """
    last_s = [max(came_s for _, came_s in sample) for sample in zip(*ranks, strict=True)]
    return [[max(end_s - last, 0.0) for (end_s, _), last in zip(mine, last_s, strict=True)] for mine in ranks]


@dataclass(frozen=True)
class Arrival:
    """The arrival of ranks at calls.

    Balanced calls that are compared with late ones wait for 0 s: they pay for a wait, like a late rank.
    """

    pattern: str
    scale_s: float | None = None  # the longest delay; None: the median of balanced calls
    asleep: bool = False  # whether ranks sleep through their delays, because other ranks need their cores
    first: int = 0  # the number of the first turn

    def delays_s(self, turn: int, ranks: int) -> tuple[float, ...]:
        return tuple((self.scale_s or 0.0) * share for share in PATTERNS[self.pattern](turn, ranks))

    def wait(self, number: int, transport: Transport) -> Wait | None:
        """Return this rank's wait in a turn after ``first``; None without delays and without late calls to compare."""
        if self.pattern == BALANCED and self.scale_s is None:
            return None
        turn = max(self.first + number, 0)
        return Wait(self.delays_s(turn, transport.size)[transport.rank], self.asleep)

    def as_row(self) -> dict[str, Any]:
        return {"arrival": self.pattern, "arrival_us": 1e6 * (self.scale_s or 0.0)}


TOGETHER, AT_ONCE = Arrival(BALANCED), Arrival(BALANCED, 0.0)  # without late calls, and compared with them


def delays_of(row: Row, most: int) -> list[tuple[float, ...]]:
    """Return the distinct delays of all ranks, in s, in at most ``most`` turns of a row."""
    arrival = Arrival(row.arrival, row.arrival_us * 1e-6)
    return list(dict.fromkeys(arrival.delays_s(turn, row.ranks) for turn in range(min(row.samples, most))))


def parse_arrivals(text: str) -> tuple[Arrival, ...]:
    """Parse ``--arrival``, without the balanced calls, which every run makes.

    Raises:
        ValueError: a pattern is invalid or repeated.

    >>> parse_arrivals("none,one-late:2ms,ramp")[0], len(parse_arrivals("none"))
    (Arrival(pattern='one-late', scale_s=0.002, asleep=False, first=0), 0)
    """
    found = [arrival_of(part) for part in listed("--arrival", text)]
    check_distinct("patterns", [each.pattern for each in found])
    return tuple(each for each in found if each.pattern != BALANCED)


def arrival_of(text: str) -> Arrival:
    pattern, colon, delay = text.partition(":")
    lookup("arrival", pattern, PATTERNS)
    if not colon:
        return Arrival(pattern)
    if pattern == BALANCED:
        raise ValueError(f"arrival {text!r}: {BALANCED} has no delay; the other patterns have one")
    return Arrival(pattern, parse("delay", delay, SECONDS, "2ms", zero=False))


@dataclass(frozen=True, kw_only=True)
class Arrivals(Declared):
    """The arrival patterns of a run, in addition to balanced calls."""

    arrival: tuple[Arrival, ...] = option(
        f"{ARRIVAL_HELP}.", (), typed=str, shown=BALANCED, parse=lambda text: parsed("--arrival", parse_arrivals, text)
    )

    def check_arrivals(self, cadence: str, ranks: int) -> None:
        """Raise a ValueError if these ranks cannot arrive so."""
        check_distinct("arrival", [each.pattern for each in self.arrival])
        for each in self.arrival:
            lookup("arrival", each.pattern, PATTERNS)
            if not 0 < (MOST_S if each.scale_s is None else each.scale_s) <= MOST_S:
                raise ValueError(
                    f"arrival {each.pattern} needs a delay above 0 s, up to {MOST_S:g} s, not {each.scale_s:g}"
                )
            if cadence != "isolated":
                raise ValueError(
                    f"arrival {each.pattern} needs the cadence isolated, not {cadence}: in a row of calls each rank "
                    "begins the next one as soon as its last one is over"
                )
            if ranks < 2:
                raise ValueError(
                    f"arrival {each.pattern} needs at least 2 ranks, not {ranks}: a single rank is never late"
                )
