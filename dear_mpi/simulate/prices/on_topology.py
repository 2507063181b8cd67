"""Prices of collectives on a network with a topology, out of a few replays by SimGrid.

Replays are slow, and sizes are many: a bucket each. Three things make few replays enough:

- The time of a program of A steps depends on alpha, beta and the bytes n by A alpha and n beta alone, and twice both
  take twice the time. So it is (A alpha + n beta) f(x), where x = n beta / (A alpha + n beta) is the part that bytes
  have in the sum: 0 where there is only latency, 1 where there is none.
- One f serves all sizes, and all networks of that topology: also one with half the latency.
- f is a straight line where the longest path through the messages is the same for all x, as it is where all ranks go
  in step: then five replays say what it is anywhere. Elsewhere each size is replayed: a value in between does not
  follow from the known ones, because a small change can make another message wait, and a price jumps.

Each replay sends a buffer of 1 GiB, on links that are made for its x; there SimGrid's 16 bytes of envelope are nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program, write_program
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.prices import Prices, Replay
from dear_mpi.simulate.simgrid import find_smpirun, replay
from dear_mpi.simulate.topology import Topology

WITHIN = 5e-5  # of a price: see ``Curve``
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_MESSAGES = 600_000  # of a replay: some 20 s, and there are several
NBYTES = 2**30  # the longest message is the whole buffer, and SimGrid takes less than 2 GiB
LENGTH_S = 1000.0  # of A alpha + n beta in a replay, so that SimGrid's precision of 1 ns is nothing, too
LEAST = 1e-6  # instead of 0: SimGrid has no links without a limit; and without latencies, they do not weigh in sharing


@dataclass(frozen=True, kw_only=True)
class PricesOnTopology(Prices):
    """What collectives cost on a topology, whose links are the network's."""

    topology: Topology

    def check_algorithm(self, algorithm: str, collectives: Iterable[str]) -> None:
        super().check_algorithm(algorithm, collectives)
        if self.ranks > 1:
            find_smpirun()

    def replay(self, algorithm: str, collective: str, pieces: int) -> Replay:
        if self.ranks == 1:
            return super().replay(algorithm, collective, pieces)
        find_smpirun()
        programs = self.written(algorithm, collective, pieces)
        steps = max(len(program.steps) for program in programs)
        chunks = programs[0].chunks
        count = NBYTES // chunks * chunks

        def f(place: float) -> float:
            latency, wire = (max(part, LEAST) * LENGTH_S for part in (1 - place, place))
            link = {"alpha": latency / steps, "beta": wire / count}
            return replay(programs, count, 1, self.topology, **link) / LENGTH_S

        return ByCurve(steps, Curve(f, within=WITHIN))

    def written(self, algorithm: str, collective: str, pieces: int) -> list[Program]:
        """The programs of all ranks.

        Raises:
            ValueError: they have too many messages.
        """
        function, hosts = find_algorithm(algorithm, collective), self.topology.neighbourhoods(self.ranks)
        programs: list[Program] = []
        messages = 0
        for rank in range(self.ranks):
            programs.append(write_program(function, rank, self.ranks, hosts=hosts, pieces=pieces))
            messages += sum(len(step.sends) for step in programs[rank].steps)
            if messages > MOST_MESSAGES:
                raise ValueError(
                    f"{collective} of {algorithm!r} has some {messages * self.ranks // (rank + 1)} messages on"
                    f" {self.ranks} ranks, and SimGrid replays at most {MOST_MESSAGES} here: take fewer ranks"
                )
        return programs


@dataclass(frozen=True)
class ByCurve:
    """The steps A of the longest program, and the function f; see ``Replay``."""

    steps: int
    curve: Curve

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        wire_s = network.beta * (itemsize * counts)
        sum_s = self.steps * network.alpha + wire_s
        priced = sum_s > 0  # else all is free
        sum_s[priced] *= self.curve((wire_s[priced] / sum_s[priced]).tolist())
        return sum_s


class Curve:
    """A slow function on 0..1, interpolated to ``within`` where it is straight, and evaluated where it is not.

    A convex function that is off its chord by e in the middle is nowhere off by more than 2 e. All functions are tested
    in the middle and at two more places, as they need not be convex.

    Args:
        function: from a place to a value above zero; it is called from several threads at once.
        within: how far the values in between may be off the line between the ends, as a share of them.

    Attributes:
        known: the values that the function has given.

    >>> curve = Curve(lambda place: 1 + 2 * place, within=1e-3)
    >>> curve([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8]), len(curve.known)
    (array([1.2, 1.4, 1.6, 1.8, 2.2, 2.4, 2.6]), 5)
    """

    def __init__(self, function: Callable[[float], float], *, within: float) -> None:
        self.function, self.within = function, within
        self.known: dict[float, float] = {}

    def __call__(self, places: Iterable[float]) -> Array:
        """The values at these places from 0 to 1."""
        asked = list(places)
        few = len(self.known.keys() | set(asked)) < len(PLACES)
        if few or not self.is_straight():
            return np.array(self.values(asked))
        return np.interp(asked, PLACES, self.values(PLACES))

    def is_straight(self) -> bool:
        """Whether all is on a line; asks the function at five places, once."""
        values = np.array(self.values(PLACES))
        line = np.interp(PLACES, (0, 1), values[[0, -1]])
        return bool((np.abs(line / values - 1) <= self.within).all())

    def values(self, places: Iterable[float]) -> list[float]:
        """The function's own values, several at a time."""
        asked = list(places)
        new = sorted(set(asked) - set(self.known))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known.update(zip(new, pool.map(self.function, new), strict=True))
        return [self.known[place] for place in asked]
