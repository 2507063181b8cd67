"""A network in which one rank, or the link between two ranks, is slower than the rest.

    rank 0 --- rank 1 === rank 2 --- rank 3        === takes so many times as long, in alpha and in beta

All messages of a slow rank are slow, and so are its sums. Slow messages move at the rate that the other end could keep
busy, too: they occupy its port for longer, as a receiver that reads slowly holds its sender up.
"""

from dataclasses import dataclass

from dear_mpi.collectives.program.network import Network

SLOW = 2  # distances from here on are over what is slow


@dataclass(frozen=True)
class SlowNetwork(Network):
    """``slow`` is a rank, or two whose link is meant; ``factor`` says how many times as long it takes.

    >>> slow = SlowNetwork(alpha=1.0, slow=(2,), factor=3.0)
    >>> [slow.link(slow.distance(*ends)).alpha for ends in ((0, 1), (1, 2), (2, 3))]
    [1.0, 3.0, 3.0]
    """

    slow: tuple[int, ...] = ()
    factor: float = 1.0

    def distance(self, rank: int, peer: int) -> int:
        return super().distance(rank, peer) + SLOW * bool(self.slow and {*self.slow} <= {rank, peer})

    def link(self, distance: int) -> Network:
        level = super().link(distance % SLOW)
        times = self.factor if distance >= SLOW else 1.0
        return Network(level.alpha * times, level.beta * times, self.gamma, level.o)

    def gamma_of(self, rank: int) -> float:
        return self.gamma * (self.factor if self.slow == (rank,) else 1.0)
