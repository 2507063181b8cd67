"""Emulate the links of a graph (``--link FILE.json``): a rate for each pair, shared ports, changes during a job.

    rank 0 --- link to 1 ---------------------------------> rank 1
           '-- link to 2 -- port of ranks 0 and 1, out ---> rank 2      a message ends when it has passed both

A graph may have "changes": [{"after_s": 3, "link": [0, 1], "rate": 6e7}], in bytes/s from rank 0 to rank 1.
"""

import time
import zlib
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from msgspec import convert

from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.collectives.transports.emulated import OUT, Link, Port, port_of_host
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.contrib.networks.graph import Graph, read_graph
from dear_mpi.contrib.networks.graph import Port as GraphPort


@dataclass(frozen=True)
class Change:
    after_s: float  # from the start
    link: tuple[int, int]
    rate: float  # bytes/s


@dataclass(frozen=True)
class Changes:
    """The rest of the file is a graph, or of another format."""

    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class GraphLink(Link):
    """Pairs without a link are as fast as the slowest one, ``bandwidth``."""

    graph: Graph = field(default_factory=lambda: Graph(1, {}))
    changes: tuple[Change, ...] = ()
    modelled = False

    def __str__(self) -> str:
        rates = sorted(set(self.graph.links.values()))
        span = " to ".join(map(format_rate, rates[:1] + rates[1:][-1:]))
        known = repr((self.graph.size, sorted(self.graph.links.items()), self.graph.ports, self.changes))
        return (
            f"{len(self.graph.links)} links of {span}, {self.latency_s * 1e6:.4g} us ({zlib.crc32(known.encode()):08x})"
        )

    def hosts(self, machines: tuple[int, ...]) -> tuple[int, ...]:
        if len(machines) != self.graph.size:
            raise ValueError(f"link: the file has {self.graph.size} ranks, and the job {len(machines)}")
        for port in self.graph.ports:
            if len({machines[rank] for rank in port.ranks}) > 1:
                raise ValueError(
                    f"link: ranks {port.ranks} run on several machines: they cannot share an emulated port"
                )
        return machines

    def ports(self, transport: Transport) -> dict[int, Port]:
        graph, rank, begin_s = self.graph, transport.rank, time.perf_counter()
        outer = dict[int, Port]()
        for number, each in enumerate(graph.ports):
            if len(each.ranks) > 1:  # in memory that these ranks share
                groups = tuple(0 if other in each.ranks else 1 + other for other in range(graph.size))
                outer[number] = port_of_host(self, transport, groups)
            elif rank in each.ranks:
                outer[number] = Port(self)
        found = dict[int, Port]()
        for peer in range(graph.size):
            port = found[peer] = PairPort(self, graph.links.get((rank, peer), self.bandwidth))
            through = [n for n, each in enumerate(graph.ports) if rank in each.ranks and peer not in each.ranks]
            port.outer = [(outer[number], graph.ports[number]) for number in through]
            mine = (each for each in self.changes if each.link == (rank, peer))
            port.changes = [(begin_s + each.after_s, each.rate) for each in mine]
        return found


class PairPort(Port):
    """A link to one peer, through ports; ``changes``: when, and its bytes/s from then on.

    The link's seconds pass at its sender, which is the only one; the receiver's end counts ports.
    """

    def __init__(self, link: Link, bandwidth: float) -> None:
        super().__init__(link)
        self.bandwidth, self.changes = bandwidth, list[tuple[float, float]]()
        self.outer = list[tuple[Port, GraphPort]]()

    def rate(self, side: int) -> float:
        while self.changes and self.changes[0][0] <= time.perf_counter():
            _, self.bandwidth = self.changes.pop(0)
        rates = [(each.out, each.into)[side] for _, each in self.outer]
        return min([*rates, self.bandwidth] if side == OUT else [*rates, inf])

    def book(self, side: int, begin_s: float, nbytes: int) -> float:
        end_s = super().book(side, begin_s, nbytes) if side == OUT else begin_s
        for port, each in self.outer:
            with port.lock:
                over_s = max(begin_s, float(port.free_s[side])) + nbytes / (each.out, each.into)[side]
                port.free_s[side] = over_s
            end_s = max(end_s, over_s)
        return end_s


def read_link(path: str) -> GraphLink:
    """Read ``--link FILE.json``. Raises ValueError."""
    graph = read_graph(path)
    with reading("link", Path(path), "rates per pair") as content:
        changes = convert(content, Changes).changes
        for each in changes:
            if each.link not in graph.links or each.rate <= 0 or each.after_s < 0:
                raise ValueError(f"a change must name a link of the file, and a rate above 0, not {each}")
    changes = tuple(sorted(changes, key=lambda each: each.after_s))
    return GraphLink(min(graph.links.values()), graph.alpha, graph=graph, changes=changes)
