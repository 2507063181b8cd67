"""Prices of collectives on a network with a topology, out of a few replays by SimGrid.

Replays are slow, and sizes are many: a bucket each. Three things make few replays enough:

- The time of a program of A steps depends on alpha, beta and the bytes n by A alpha and n beta alone, and twice both
  take twice the time. So it is (A alpha + n beta) f(x), where x = n beta / (A alpha + n beta) is the part that bytes
  have in the sum: 0 where there is only latency, 1 where there is none.
- One f serves all sizes, and all networks of that topology: also one with half the latency.
- f is a straight line where the longest path through the messages is the same for all x, as it is where all ranks go
  in step: then ``Curve`` needs five replays. Elsewhere each size is replayed.

Each replay sends a buffer of 1 GiB, on links that are made for its x; there SimGrid's 16 bytes of envelope are nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm
from dear_mpi.collectives.program.program import Program, write_program
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.curve import Curve
from dear_mpi.simulate.prices.prices import Prices
from dear_mpi.simulate.simgrid import find_smpirun, replay
from dear_mpi.simulate.topology import Topology

WITHIN = 5e-5  # of a price: see ``Curve``
MOST_MESSAGES = 600_000  # of a replay: some 20 s, and there are several
NBYTES = 2**30  # the longest message is the whole buffer, and SimGrid takes less than 2 GiB
LENGTH_S = 1000.0  # of A alpha + n beta in a replay, so that SimGrid's precision of 1 ns is nothing, too
LEAST = 1e-6  # instead of 0: SimGrid has no links without a limit; and without latencies, they do not weigh in sharing


@dataclass(frozen=True, kw_only=True)
class Replayed(Prices):
    """What collectives cost on a topology, whose links are the network's.

    Attributes:
        curves: (algorithm, collective, pieces): the steps A and the function f.
    """

    topology: Topology
    curves: dict[tuple[str, str, int], tuple[int, Curve]] = field(default_factory=dict, repr=False)

    def check_algorithm(self, algorithm: str, collectives: Iterable[str]) -> None:
        super().check_algorithm(algorithm, collectives)
        if self.ranks > 1:
            find_smpirun()

    def replayed(self, algorithm: str, collective: str, pieces: int, nbytes: Sequence[int]) -> Array:
        """The times of buffers that are cut into as many pieces: (A alpha + n beta) f(x)."""
        key = (algorithm, collective, pieces)
        if self.ranks == 1:
            return np.zeros(len(nbytes))
        if key not in self.curves:
            self.curves[key] = self.curve(*key)
        steps, curve = self.curves[key]
        wire_s = self.network.beta * np.array(nbytes)
        sum_s = steps * self.network.alpha + wire_s
        priced = sum_s > 0  # else all is free
        sum_s[priced] *= curve((wire_s[priced] / sum_s[priced]).tolist())
        return sum_s

    def curve(self, algorithm: str, collective: str, pieces: int) -> tuple[int, Curve]:
        """The steps of the longest program, and f, which replays the programs where it is asked for a new place."""
        find_smpirun()
        programs = self.written(algorithm, collective, pieces)
        steps = max(len(program.steps) for program in programs)
        chunks = programs[0].chunks
        count = NBYTES // chunks * chunks

        def f(place: float) -> float:
            latency, wire = (max(part, LEAST) * LENGTH_S for part in (1 - place, place))
            link = {"alpha": latency / steps, "beta": wire / count}
            return replay(programs, count, 1, self.topology, **link) / LENGTH_S

        return steps, Curve(f, within=WITHIN)

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
