"""Replay programs for many sizes of the buffer at once: a number in ``cost`` is here a column of numbers.

It is the replay of ``cost``, whose events come in an order that depends on the size of the buffer. This one takes the
order of one size, the leader's, does the arithmetic for all sizes, and finds out for which that order will do:

    size 1 KB     a is over, then b and c at once        the leader
    size 2 KB     a is over, then b and c at once        the same order: its times are right
    size 1 MB     b is over, then a, then c              another one: replayed again, with a leader of its own

Where hardly two sizes have the same order, each is replayed by itself, as in ``cost``.

Order matters among flows that share ports, be it through others, and at the processor of a rank; nowhere else. Each
number goes through the same operations as in ``cost``, so that times differ by rounding alone.

Time and memory: some 50 numpy calls for each message, on arrays of one number for each size. For one size ``cost`` is
two to five times as fast; for 64 sizes it takes some ten times as long.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dear_mpi.collectives.program.network import TIE, Network
from dear_mpi.collectives.program.simulation import Number, Simulation
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.stand_ins import StandIns

FEW = 3  # a replay of many sizes takes as long as some three of one size


@dataclass(frozen=True)
class Columns:
    """Any programs; see ``Replay``."""

    ranks: StandIns

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        times, todo = np.zeros(len(counts)), np.arange(len(counts))
        served = len(counts)
        while todo.size >= FEW and served >= FEW:
            run = ManySizes(self.ranks, network, counts[todo], itemsize)
            run.to_the_end()
            run.same[run.leader] = True  # by definition, whatever rounding says
            times[todo[run.same]] = np.max([rank.entered_s for rank in run.ranks], axis=0)[run.same]
            served, todo = run.same.sum(), todo[~run.same]
        for place in todo:
            one = OneSize(self.ranks, network, counts[place : place + 1], itemsize)
            one.to_the_end()
            times[place] = max(rank.entered_s for rank in one.ranks)
        return times


class OneSize(Simulation):
    """The replay of ``cost``, of ranks that may stand for others."""

    def __init__(self, ranks: StandIns, network: Network, counts: Array, itemsize: int) -> None:
        super().__init__(ranks.programs, (), network)
        self.size, self.bytes_of = ranks.size, cache(partial(ranks.nbytes, counts, itemsize))

    def seen_by(self, rank: int, peer: int) -> tuple[int, int]:
        """The same pair, among the pairs that do the same, as the stand-in of its first rank names it."""
        stand_in = rank % len(self.ranks)
        return stand_in, (peer - rank + stand_in) % self.size

    def nbytes(self, chunks: range) -> Number:
        return int(self.bytes_of(chunks)[0])


class ManySizes(OneSize):
    """One replay, of a number for each size wherever ``cost`` has one number.

    Attributes:
        same: of each size, whether its order of events is the leader's.
    """

    latest: Callable[[Number, Number], Number] = staticmethod(np.maximum)

    def __init__(self, ranks: StandIns, network: Network, counts: Array, itemsize: int) -> None:
        super().__init__(ranks, network, counts, itemsize)
        self.leader, self.same = len(counts) // 2, np.ones(len(counts), bool)
        self.start_s = np.zeros(len(counts))
        self.before_s: dict[object, Array] = defaultdict(lambda: self.start_s)

    def key(self, time_s: Array) -> float:
        return float(time_s[self.leader])

    def moment(self, times_s: Sequence[Array], places: Iterable[object]) -> Array:
        """The same. A size stays ``same`` if its times are one, and no earlier than the last at these places."""
        now_s: Array = times_s[0]
        if len(times_s) > 1:
            now_s = np.maximum.reduce(times_s)
            self.same &= np.minimum.reduce(times_s) >= now_s * (1 - TIE)
        for place in places:
            self.same &= now_s >= self.before_s[place] * (1 - TIE)
            self.before_s[place] = now_s
        return now_s

    def nbytes(self, chunks: range) -> Array:
        return self.bytes_of(chunks)
