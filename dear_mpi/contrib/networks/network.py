"""Price programs on a graph: ``simulate --network graph:FILE``.

A message takes its link and the ports of its ends, and shares them as in ``collectives/program/cost.py``. If two ranks
have no link, it goes the way of fewest links, through the lowest ranks, and its latency counts each.
"""

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

from dear_mpi.collectives.program.cost import Network, Side, Way
from dear_mpi.contrib.networks.graph import Graph, distances, read_graph


@dataclass(frozen=True)
class GraphNetwork(Network):
    """``beta`` is the fastest link's or port's; slower ones have less capacity."""

    ports: ClassVar[bool] = False
    graph: Graph = field(default_factory=lambda: Graph(1, {}), hash=False)

    @classmethod
    def of(cls, graph: Graph) -> "GraphNetwork":
        rates = [*graph.links.values(), *(rate for port in graph.ports for rate in (port.out, port.into))]
        return cls(alpha=graph.alpha, beta=1 / max(rates, default=1.0), graph=graph)

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        return self.graph.hosts

    @cached_property
    def nexts(self) -> dict[tuple[int, int], int]:
        """Return the next rank on the way from one rank to another."""
        found = dict[tuple[int, int], int]()
        for dest in range(self.graph.size):
            left = distances(self.graph.reverse, dest)  # links from each rank to ``dest``
            for rank in range(self.graph.size):
                if rank != dest:
                    found[rank, dest] = next(peer for peer in self.graph.peers[rank] if left[peer] == left[rank] - 1)
        return found

    def hops(self, source: int, dest: int) -> list[int]:
        found = [source]
        while found[-1] != dest:
            found.append(dest if (found[-1], dest) in self.graph.links else self.nexts[found[-1], dest])
        return found

    def distance(self, rank: int, peer: int) -> int:
        return len(self.hops(rank, peer)) - 1

    def link(self, distance: int) -> Network:
        return Network(self.alpha * distance, self.beta, self.gamma, self.o)

    def way_out(self, rank: int, peer: int) -> Way:
        sides = list[Side]()
        for pair in pairwise(self.hops(rank, peer)):
            outs, ins = self.graph.ways[pair]
            sides += [("link", *pair), *(("out", port) for port in outs), *(("in", port) for port in ins)]
        return tuple(dict.fromkeys(sides))

    def way_in(self, rank: int, peer: int) -> Way:
        return ()

    def capacity(self, side: Side) -> float:
        return self.side_rates[side] * self.beta

    @cached_property
    def side_rates(self) -> dict[Side, float]:
        found: dict[Side, float] = {("link", *pair): rate for pair, rate in self.graph.links.items()}
        for number, port in enumerate(self.graph.ports):
            found |= {("out", number): port.out, ("in", number): port.into}
        return found


def read_network(text: str, ranks: int) -> GraphNetwork:
    """Read ``graph:FILE`` or ``graph:torus:4x4,10gbit,50us``. ValueError: unreadable, or of other ranks."""
    graph = read_graph(text.partition(":")[2])
    if graph.size != ranks:
        raise ValueError(f"network {text!r} has {graph.size} ranks, not {ranks}: use --ranks {graph.size}")
    return GraphNetwork.of(graph)
