"""Price programs on a graph: ``simulate --network graph:FILE``.

A message takes its link and the ports of its ends, and shares them as in ``collectives/program/cost.py``. If two ranks
have no link, it takes the path with the fewest links (lowest ranks first). Each link adds its latency.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
    def links_to(self) -> Callable[[int], list[int]]:
        """Return the fewest links from each rank to one rank."""
        return cache(partial(distances, self.graph.reverse))

    def hops(self, source: int, dest: int) -> list[int]:
        """Return the ranks on the path."""
        path = [source]
        while (last := path[-1]) != dest:
            if (last, dest) in self.graph.links:
                path.append(dest)
            else:
                left = self.links_to(dest)
                path.append(next(peer for peer in self.graph.peers[last] if left[peer] < left[last]))
        return path

    def distance(self, rank: int, peer: int) -> int:
        return len(self.hops(rank, peer)) - 1

    def link(self, distance: int) -> Network:
        return Network(self.alpha * distance, self.beta, self.gamma, self.o)

    def way_out(self, rank: int, peer: int) -> Way:
        sides = list[Side]()
        for pair in pairwise(self.hops(rank, peer)):
            outs, ins = self.graph.passed[pair]
            sides += [("link", *pair), *(("out", port) for port in outs), *(("in", port) for port in ins)]
        return tuple(dict.fromkeys(sides))

    def way_in(self, rank: int, peer: int) -> Way:
        return ()

    def capacity(self, side: Side) -> float:
        match side:
            case "out", int(number):
                rate = self.graph.ports[number].out
            case "in", int(number):
                rate = self.graph.ports[number].into
            case _, int(source), int(dest):
                rate = self.graph.links[source, dest]
        return rate * self.beta


def read_network(text: str, ranks: int) -> GraphNetwork:
    """Read ``graph:FILE`` or ``graph:torus:4x4,10gbit,50us``. ValueError: unreadable, or of other ranks."""
    graph = read_graph(text.partition(":")[2])
    if graph.size != ranks:
        raise ValueError(f"network {text!r} has {graph.size} ranks, not {ranks}: use --ranks {graph.size}")
    return GraphNetwork.of(graph)
