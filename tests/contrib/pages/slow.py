"""What a page means by a rank, or a link between two ranks, that is slower than the rest.

    rank 0 --- rank 1 === rank 2 --- rank 3        === takes so many times as long, in alpha and in beta

All messages of a slow rank are slow, and so are its sums. Slow messages move at the rate that the other end could keep
busy, too: they occupy its port for longer, as a receiver that reads slowly holds its sender up.
"""

from dataclasses import dataclass

from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.simulation import Simulation

SLOW = 2  # distances from here on are over what is slow


@dataclass(frozen=True)
class SlowNetwork(Network):
    """``slow`` is a rank, or two whose link is meant; ``factor`` says how many times as long it takes."""

    slow: tuple[int, ...] = ()
    factor: float = 1.0

    def distance(self, rank, peer):
        return super().distance(rank, peer) + SLOW * bool(self.slow and {*self.slow} <= {rank, peer})

    def link(self, distance):
        level = super().link(distance % SLOW)
        times = self.factor if distance >= SLOW else 1.0
        return Network(level.alpha * times, level.beta * times, self.gamma, level.o)

    def port(self, rank, peer):
        """That of the host, for messages to other hosts, be they slow or not."""
        return super().port(rank, peer) if super().distance(rank, peer) else ("rank", rank)


class SlowSimulation(Simulation):
    """On a ``SlowNetwork``: a slow rank adds up as if there were so many times as many bytes."""

    def over(self, time_s, flow, message):
        if self.network.slow == (flow.target,):
            message = message._replace(nbytes=message.nbytes * self.network.factor)
        super().over(time_s, flow, message)
