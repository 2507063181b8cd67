"""Describe a network by its ranks: links between them, and ports that several messages share.

    {"ranks": 3, "alpha_s": 1e-5, "links": [[0, 1, 1.25e8], [1, 0, 1.25e8]],
     "ports": [{"ranks": [2], "out": 1e9, "into": 1e9}]}

A link goes one way: from, to, bytes/s. A port limits all messages from its ranks to others, and all into them.

A file of ``links`` or ``doctor`` has the rates of pairs, each measured while the others were idle. So a rank gets a
port with its fastest link's rate, and the ranks of a host share one with the fastest rate to another host. Some shapes
have names: ``mesh:5x5``, ``torus:4x4x4``, ``star:8``, ``fattree:4x8,2`` (leaves x ranks, uplinks), also with a link's
rate and latency: ``torus:4x4,10gbit,50us``.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, convert, to_builtins

from dear_mpi.bench.machine_file import MachineFile
from dear_mpi.collectives.program.hosts import by_host
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.reporting.units import parse_link

MOST_RANKS = 1024
Rate: TypeAlias = Annotated[float, Meta(ge=1, le=1e15)]  # bytes/s, in files
SHAPES = re.compile(r"(mesh|torus):([0-9]+(?:x[0-9]+)*)|(star):([0-9]+)|(fattree):([0-9]+x[0-9]+),([0-9]+)")
WRITER = "dear-mpi links --json, of doctor, or a graph"


class Port(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes/s that these ranks share towards all others, and from all others."""

    ranks: tuple[int, ...]
    out: Rate
    into: Rate


@dataclass(frozen=True)
class Graph:
    """``links``: bytes/s by (from, to); ``alpha``: seconds per message. ValueError: a rank or rate is out of range."""

    size: int
    links: Mapping[tuple[int, int], float]
    ports: tuple[Port, ...] = ()
    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MOST_RANKS:
            raise ValueError(f"ranks must be from 1 to {MOST_RANKS}, not {self.size}")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha_s must be seconds >= 0, not {self.alpha}")
        for (source, dest), rate in self.links.items():
            self.check(f"the link {source} to {dest}", (source, dest), rate)
        for number, port in enumerate(self.ports):
            self.check(f"ports[{number}]", port.ranks, port.out, port.into)

    def check(self, what: str, ranks: Sequence[int], *rates: float) -> None:
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise ValueError(f"{what}: ranks must be from 0 to {self.size - 1}, not {rank}")
        if len({*ranks}) < len(ranks) or not ranks:
            raise ValueError(f"{what}: ranks must differ, one or more, not {list(ranks)}")
        for rate in rates:
            if not 0 < rate < math.inf:
                raise ValueError(f"{what}: a rate must be bytes/s above 0, not {rate}")

    @cached_property
    def passed(self) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return, for each link, the ports through which messages leave, the smallest first, and those they enter."""
        members = [frozenset(port.ranks) for port in self.ports]
        mine: list[list[int]] = [[] for _ in range(self.size)]
        for number in sorted(range(len(members)), key=lambda number: len(members[number])):
            for rank in self.ports[number].ranks:
                mine[rank].append(number)

        def crossed(inside: int, outside: int) -> Iterator[int]:
            return (number for number in mine[inside] if outside not in members[number])

        return {
            (one, other): (tuple(crossed(one, other)), tuple(crossed(other, one))[::-1]) for one, other in self.links
        }

    @cached_property
    def peers(self) -> list[list[int]]:
        """Return each rank's peers over a link, ascending."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for source, dest in sorted(self.links):
            found[source].append(dest)
        return found

    @cached_property
    def reverse(self) -> "Graph":
        """Return the network with all directions exchanged, on which reductions are mirror images."""
        ports = tuple(Port(port.ranks, port.into, port.out) for port in self.ports)
        return Graph(
            self.size, {(dest, source): rate for (source, dest), rate in self.links.items()}, ports, self.alpha
        )

    @property
    def hosts(self) -> tuple[int, ...] | None:
        """Return each rank's host, if ports of several ranks have each rank once; else None."""
        groups = sorted((port.ranks for port in self.ports if len(port.ranks) > 1), key=min)
        host = {rank: number for number, ranks in enumerate(groups) for rank in ranks}
        once = len(host) == self.size == sum(map(len, groups))
        return tuple(host[rank] for rank in range(self.size)) if once else None

    def unreachable(self) -> tuple[int, int] | None:
        """Return two ranks without a path from the first to the second; None if there are none."""
        missing = [(0, rank) for rank, hops in enumerate(distances(self, 0)) if hops < 0]
        missing += [(rank, 0) for rank, hops in enumerate(distances(self.reverse, 0)) if hops < 0]
        return missing[0] if missing else None


def distances(graph: Graph, first: int) -> list[int]:
    """Return the fewest links from a rank to each rank; -1 if there is no path."""
    found, waiting = [-1] * graph.size, [first]
    found[first] = 0
    for rank in waiting:
        for peer in graph.peers[rank]:
            if found[peer] < 0:
                found[peer] = found[rank] + 1
                waiting.append(peer)
    return found


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A link's bytes/s from these seconds on, while it is emulated (``emulate.py``)."""

    after_s: float
    link: tuple[int, int]
    rate: Rate


class Changes(Struct):
    changes: tuple[Change, ...] = ()


class GraphFile(Changes, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    ranks: int
    alpha_s: float = 0.0
    links: list[tuple[int, int, Rate]]
    ports: tuple[Port, ...] = ()


def read_graph(path: str | Path) -> Graph:
    """Read a graph, a file of ``links`` or ``doctor``, or a shape's name.

    Raises:
        ValueError: the text is no shape; the file cannot be read; or a rank cannot be reached. It names file and row.

    >>> len(read_graph("torus:4x4").links), read_graph("star:3").ports[0]
    (64, Port(ranks=(0,), out=1000000000.0, into=1000000000.0))
    """
    if isinstance(path, str) and not path.endswith(".json"):
        return of_shape(path)
    return read_file(Path(path))[0]


def read_file(path: Path) -> tuple[Graph, tuple[Change, ...]]:
    """Return a file's graph, and how it changes. ValueErrors name file and row."""
    with reading("graph", path, WRITER) as content:
        named = isinstance(content, dict) and {"ranks", "links"} & content.keys()
        ours = named and not isinstance(content.get("ranks"), list)
        found = of_file(convert(content, GraphFile)) if ours else of_machine(convert(content, MachineFile))
        if (pair := found.unreachable()) is not None:
            raise ValueError("rank {1} cannot be reached from rank {0}: measure more pairs".format(*pair))
        changes = convert(content, Changes).changes
        for number, each in enumerate(changes):
            if each.link not in found.links or not (0 < each.rate < math.inf and 0 <= each.after_s < math.inf):
                raise ValueError(f"changes[{number}] needs a link of the file, a rate above 0 and a time, not {each}")
    return found, changes


def of_file(file: GraphFile) -> Graph:
    links = dict[tuple[int, int], float]()
    for number, (source, dest, rate) in enumerate(file.links):
        if (source, dest) in links:
            raise ValueError(f"links[{number}]: the link {source} to {dest} is defined twice")
        links[source, dest] = rate
    return Graph(file.ranks, links, file.ports, file.alpha_s)


def of_machine(file: MachineFile) -> Graph:
    """Take the fastest, if a pair was measured by several paths."""
    if not file.links:
        raise ValueError("it has no links")
    size, links = len(file.ranks), dict[tuple[int, int], float]()
    for number, link in enumerate(file.links):
        if link.source == link.dest:
            raise ValueError(f"links[{number}]: source and dest must differ, not both {link.source}")
        pair = link.source, link.dest
        links[pair] = max(links.get(pair, 0.0), link.GBps * 1e9)
    hosts, ports = by_host([place.host for place in file.ranks]), list[Port]()
    for ranks in [[rank] for rank in range(size)] + [ranks for ranks in hosts if 1 < len(ranks) < size]:
        out = [rate for (source, dest), rate in links.items() if source in ranks and dest not in ranks]
        into = [rate for (source, dest), rate in links.items() if dest in ranks and source not in ranks]
        if out and into:
            ports.append(Port(tuple(ranks), max(out), max(into)))
    return Graph(size, links, tuple(ports), median(link.latency_us for link in file.links) * 1e-6)


def of_shape(text: str) -> Graph:
    """Read a shape's name; links have 1 GB/s and no latency unless it gives them."""
    match = SHAPES.match(text)
    rest = text[match.end() :] if match else ""
    if match is None or rest[:1] not in ("", ","):
        like = "mesh:5x5, torus:4x4, star:8 or fattree:4x8,2"
        raise ValueError(f"graph {text!r} must be a FILE.json of {WRITER}, or a shape as {like}")
    name, sizes, *uplinks = filter(None, match.groups())
    lengths = [int(length) for length in sizes.split("x")]
    if 0 in lengths or "0" in uplinks or math.prod(lengths) > MOST_RANKS:
        raise ValueError(f"graph {text!r} must have sizes of at least 1, and at most {MOST_RANKS} ranks")
    link = parse_link(rest[1:], f"graph {text!r}: the") if rest else None
    rate, alpha = (link.bandwidth, link.latency_s) if link else (1e9, 0.0)
    size = math.prod(lengths)
    if name in ("mesh", "torus"):
        return Graph(size, dict.fromkeys(grid(lengths, around=name == "torus"), rate), alpha=alpha)
    links = {(one, other): rate for one in range(size) for other in range(size) if one != other}
    ports = [Port((rank,), rate, rate) for rank in range(size)]
    if name == "fattree":
        leaves = [tuple(range(first, first + lengths[1])) for first in range(0, size, lengths[1])]
        ports += [Port(leaf, rate * int(uplinks[0]), rate * int(uplinks[0])) for leaf in leaves]
    return Graph(size, links, tuple(ports), alpha)


def grid(lengths: Sequence[int], *, around: bool) -> Iterator[tuple[int, int]]:
    """Yield the links between neighbours of a grid; ``around``: its rows are rings.

    >>> sorted(grid([3], around=False))
    [(0, 1), (1, 0), (1, 2), (2, 1)]
    """
    for axis, length in enumerate(lengths):
        stride = math.prod(lengths[axis + 1 :])
        for first in (rank for rank in range(math.prod(lengths)) if rank // stride % length == 0):
            row = [first + stride * place for place in range(length)]
            for one, other in pairwise([*row, row[0]] if around and length > 2 else row):
                yield from ((one, other), (other, one))


def write_graph(graph: Graph, path: str | Path) -> None:
    """Write a graph as ``read_graph`` reads it."""
    links = [(*pair, rate) for pair, rate in sorted(graph.links.items())]
    content = to_builtins(GraphFile(ranks=graph.size, alpha_s=graph.alpha, links=links, ports=graph.ports))
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
