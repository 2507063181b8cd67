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

from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.transports.emulated import Link, Port, port_of_host
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.contrib.networks.graph import Change, Graph, read_file


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

    def ports(self, transport: Transport) -> list[list[Port]]:
        graph, rank, begin_s = self.graph, transport.rank, time.perf_counter()
        shared = list[Port]()
        for each in graph.ports:
            groups = tuple(0 if other in each.ranks else 1 + other for other in range(graph.size))
            shared.append(port_of_host(self, transport, groups) if len(each.ranks) > 1 else Port(self))
            shared[-1].rates = each.out, each.into
        found = list[list[Port]]()
        for peer in range(graph.size):
            link = ChangingPort(self)
            link.rates = graph.links.get((rank, peer), self.bandwidth), inf
            link.changes = [(begin_s + each.after_s, each.rate) for each in self.changes if each.link == (rank, peer)]
            limits = zip(shared, graph.ports, strict=True)
            found.append([link, *(port for port, of in limits if rank in of.ranks and peer not in of.ranks)])
        return found


class ChangingPort(Port):
    """A link to one peer; ``changes``: when, and its bytes/s from then on.

    The link's seconds pass at its sender, which is the only one; the receiver's end counts ports.
    """

    changes: list[tuple[float, float]]

    def rate(self, side: int) -> float:
        while self.changes and self.changes[0][0] <= time.perf_counter():
            self.rates = self.changes.pop(0)[1], inf
        return self.rates[side]


def read_link(path: str) -> GraphLink:
    """Read ``--link FILE.json``. Raises ValueError."""
    graph, changes = read_file(Path(path))
    if graph.size == 1:
        raise ValueError(f"link {path!r} must have two ranks or more, not 1")
    changes = tuple(sorted(changes, key=lambda each: each.after_s))
    return GraphLink(min(graph.links.values()), graph.alpha, graph=graph, changes=changes)
