"""Compute the times of a program for the sliders of a page, so that the page only interpolates.

If alpha and the seconds b of the whole buffer double, all times double. So a table over b / alpha serves all sliders:

    alpha, b     1, 0     1, 4     1, 64     0, 1          page: (alpha, b) = x (1, 4) + y (1, 64), and so are the times

Between entries times are piecewise linear. Entries that change no time by over ``EXACT`` are left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from dear_mpi.collectives.program.cost import Network, Simulation
from dear_mpi.collectives.program.program import Program

# Alpha, b.
POINTS = ((1.0, 0.0), *((1.0, 4.0**power) for power in range(6)), (0.0, 1.0))
GAMMA = 1 / 8  # of beta
BETWEEN = 2.5  # times the latency between hosts
EXACT = 0.005  # of a program's time
UNITS = 20_000  # of a program's time


class Times(NamedTuple):
    """Seconds: the last rank's end; of each rank, at each step's begin and the end; of each message."""

    whole_s: float
    entered_s: list[float]
    messages_s: list[float]  # may move, arrived, added

    def off(self, low: "Times", high: "Times", parts: tuple[float, float]) -> float:
        """Return the interpolation's error, as a part of the whole time."""
        pairs = zip(self.entered_s, low.entered_s, high.entered_s, strict=True)
        off_s = max(abs(here - parts[0] * one - parts[1] * other) for here, one, other in pairs)
        return off_s / self.whole_s if off_s else 0.0


class Recorded(Simulation):
    """Note when ranks enter steps, and what becomes of messages, by sender and receiver."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.entered: list[list[float]] = [[] for _ in self.ranks]
        self.ends = defaultdict[tuple[int, int], list[tuple[float, ...]]](list)

    def enter(self, time_s: float, index: int) -> None:
        self.entered[index].append(time_s)
        super().enter(time_s, index)

    def over(self, time_s: float, flow: Any, message: Any) -> None:
        super().over(time_s, flow, message)
        done_s = self.ranks[flow.target].busy_s if message.combined else time_s
        self.ends[flow.source, flow.target].append((message.moves_s, time_s, done_s))


def priced(
    programs: Sequence[Program], hosts: Sequence[int], messages: Sequence[Sequence[Sequence[int]]]
) -> list[list[Any]]:
    """Return the table: for each entry alpha, b, a unit in seconds, and all times in it.

    ``messages``: sender and receiver of each transfer, by step, in the order of the page. Between two ranks, all
    transfers of a step travel together.
    """
    several, chunks = len(set(hosts)) > 1, programs[0].chunks

    def times(alpha: float, whole_s: float) -> Times:
        beta = whole_s / chunks  # a chunk counts as a byte
        between = Network(BETWEEN * alpha, beta) if several else None
        network = Network(alpha, beta, GAMMA * beta, hosts=tuple(hosts) if several else None, between=between)
        run = Recorded(programs, len, network)
        run.to_the_end()
        ends = {pair: iter(found) for pair, found in run.ends.items()}
        found = list[float]()
        for step in messages:
            together = {pair: next(ends[pair]) for pair in {(sender, receiver) for sender, receiver, *_ in step}}
            found += [each for sender, receiver, *_ in step for each in together[sender, receiver]]
        return Times(run.time_s, [each for entered in run.entered for each in entered], found)

    found = [times(*point) for point in POINTS]

    def needed(low: int, high: int) -> list[int]:
        """Return the needed entries between two."""
        off = {
            at: found[at].off(found[low], found[high], shares(POINTS[at], POINTS[low], POINTS[high]))
            for at in range(low + 1, high)
        }
        worst = max(off, key=off.__getitem__, default=low)
        return [*needed(low, worst), worst, *needed(worst, high)] if off and off[worst] > EXACT else []

    last = len(POINTS) - 1
    return [[*POINTS[at], *in_units(found[at])] for at in (0, *needed(0, last), last)]


def shares(wanted: Sequence[float], low: Sequence[float], high: Sequence[float]) -> tuple[float, float]:
    """Return x and y with ``wanted = x * low + y * high``.

    >>> shares((1.0, 4.0), (1.0, 0.0), (0.0, 1.0))
    (1.0, 4.0)
    """
    area = low[0] * high[1] - low[1] * high[0]
    return (wanted[0] * high[1] - wanted[1] * high[0]) / area, (low[0] * wanted[1] - low[1] * wanted[0]) / area


def in_units(times: Times) -> tuple[float, list[int], list[int]]:
    unit_s = times.whole_s / UNITS or 1.0
    entered, messages = ([round(each / unit_s) for each in some] for some in (times.entered_s, times.messages_s))
    return unit_s, entered, messages
