"""Describe networks with a shape: how you name one, and the links on a message's path.

    star                  every rank has a port to one switch that is never full: as without a topology
    fattree:8x8,2         8 leaves of 8 ranks; 2 links go up from each leaf, where 8 would be needed: 4:1 oversubscribed
    torus:8x8             8 rows of 8 ranks, in two rings each (any number of dimensions, the last one first by rank)
    dragonfly:4x2x4x2     4 groups of 2 chassis of 4 routers of 2 ranks; one link to each of a router's neighbours

Links have two directions and one bandwidth. Ranks are numbered leaf by leaf, row by row, router by router. Two ranks
always use one path, SimGrid's (decision 0022).

Source: SimGrid's manual, "Cluster topologies"; dragonfly as in Cray's Cascade (Faanes et al., SC 2012).
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

from dear_mpi.collectives.program.cost import Network, Side, Way
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_link, whole_number


def tree_way(sizes: Sequence[int], up_links: int, source: int, target: int) -> list[Side]:
    """Return a path; the target selects the uplink: messages to a rank share one way down."""
    leaf, other = source // sizes[1], target // sizes[1]
    through = [] if leaf == other else [("up", leaf, target % up_links), ("down", other, target % up_links)]
    return [("out", source), *through, ("in", target)]


def torus_way(sizes: Sequence[int], up_links: int, source: int, target: int) -> list[Side]:
    """Go one dimension after the other, last first, each the shorter way around."""
    here, there, way = coordinates(source, sizes), coordinates(target, sizes), list[Side]()
    for axis in reversed(range(len(sizes))):
        size = sizes[axis]
        ahead = (there[axis] - here[axis]) % size
        forward = 2 * ahead < size or (2 * ahead == size and there[axis] > 0)
        for _ in range(ahead if forward else size - ahead):
            way.append((axis, forward, *here))
            here[axis] = (here[axis] + (1 if forward else -1)) % size
    return way


def dragonfly_way(sizes: Sequence[int], up_links: int, source: int, target: int) -> list[Side]:
    """Go through the single link to the target's group, which ends in chassis 0, inside a group by the router first.

    In the target group continue as from chassis 0, as in SimGrid.
    """
    group, chassis, router, _ = coordinates(source, sizes)
    other_group, other_chassis, other_router, _ = coordinates(target, sizes)
    way = list[Side]()
    if group != other_group:
        if router != other_group:
            way.append(("router", group, chassis, router, other_group))
        if chassis != 0:
            way.append(("chassis", group, other_group, chassis, 0))
        way.append(("group", group, other_group))
        chassis, router = 0, group
    if router != other_router:
        way.append(("router", other_group, chassis, router, other_router))
        chassis = 0
    if chassis != other_chassis:
        way.append(("chassis", other_group, other_router, chassis, other_chassis))
    return [("out", source), *way, ("in", target)]


def coordinates(number: int, sizes: Sequence[int]) -> list[int]:
    return [number // math.prod(sizes[axis + 1 :]) % size for axis, size in enumerate(sizes)]


class Kind(NamedTuple):
    """Topologies of one name.

    Attributes:
        example: a valid text; its first word is the name.
        pattern: of valid texts: sizes, and perhaps a number of links.
        near: number of last sizes that describe a neighbourhood: a leaf, a row, a chassis.
        way: the links between two ranks, from the sizes, the number of links, and the ranks.
    """

    example: str
    pattern: str
    near: int
    way: Callable[[Sequence[int], int, int, int], list[Side]]


N = "[0-9]+"
KINDS = (
    Kind("star", "star()", 0, lambda sizes, up_links, source, target: [("out", source), ("in", target)]),
    Kind("fattree:8x8,2", f"fattree:({N}x{N}),({N})", 1, tree_way),
    Kind("torus:8x8", f"torus:({N}(?:x{N})*)", 1, torus_way),
    Kind("dragonfly:4x2x4x2", f"dragonfly:({N}x{N}x{N}x{N})", 2, dragonfly_way),
)
TOPOLOGIES = {kind.example.partition(":")[0]: kind for kind in KINDS}


@dataclass(frozen=True)
class Topology:
    """``sizes``: of levels or dimensions; ``up_links``: of a tree's leaf."""

    name: str
    sizes: tuple[int, ...] = ()
    up_links: int = 0

    def check_room(self, ranks: int) -> None:
        """A star has as many ports as there are ranks."""
        places = math.prod(self.sizes)
        if self.sizes and ranks > places:
            raise ValueError(f"topology {str(self)!r} has places for {places} ranks, not for {ranks}")

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        """Return the number of each rank's leaf, row or chassis; None for a star.

        >>> parse_topology("dragonfly:2x1x2x2").neighbourhoods(8)
        (0, 0, 0, 0, 1, 1, 1, 1)
        """
        near = TOPOLOGIES[self.name].near
        return tuple(rank // math.prod(self.sizes[-near:]) for rank in range(ranks)) if near else None

    def way(self, source: int, target: int) -> Way:
        return tuple(TOPOLOGIES[self.name].way(self.sizes, self.up_links, source, target))

    def __str__(self) -> str:
        links = f",{self.up_links}" if self.up_links else ""
        return f"{self.name}:{'x'.join(map(str, self.sizes))}{links}" if self.sizes else self.name


@dataclass(frozen=True)
class ShapedNetwork(Network):
    """Add a topology to a network: alpha covers two links; each further link adds half of it."""

    ports: ClassVar[bool] = False
    topology: Topology = Topology("star")

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        return self.topology.neighbourhoods(ranks)

    def distance(self, rank: int, peer: int) -> int:
        return len(way_of(self.topology, rank, peer))

    def link(self, distance: int) -> Network:
        return Network(self.alpha * distance / 2, self.beta, self.gamma, self.o)

    def way_out(self, rank: int, peer: int) -> Way:
        way = way_of(self.topology, rank, peer)
        return way[: len(way) // 2]

    def way_in(self, rank: int, peer: int) -> Way:
        way = way_of(self.topology, peer, rank)
        return way[len(way) // 2 :]


way_of = cache(Topology.way)  # few pairs, queried often


def parse_topology(text: str) -> Topology:
    """Raises:
        ValueError: there is no such topology; its sizes are too few, too many or 0; or a dragonfly has more groups than
        routers in a chassis.

    >>> parse_topology("fattree:8x8,2")
    Topology(name='fattree', sizes=(8, 8), up_links=2)
    >>> parse_topology("torus:4")
    Topology(name='torus', sizes=(4,), up_links=0)
    """
    name = text.partition(":")[0]
    kind = lookup("topology", name, TOPOLOGIES)
    match = re.fullmatch(kind.pattern, text)
    if match is None:
        raise ValueError(f"topology {text!r} cannot be read: write it like {kind.example}")
    if 0 in map(int, re.findall(N, text)):
        raise ValueError(f"topology {text!r} has a 0 in it: sizes and links must be at least 1, as in {kind.example}")
    sizes, *links = match.groups()
    found = Topology(name, tuple(map(int, filter(None, sizes.split("x")))), *map(int, links))
    if name == "dragonfly" and found.sizes[0] > found.sizes[2]:
        groups, _, routers, _ = found.sizes
        more = f"has {groups} groups, more than the {routers} routers of a chassis"
        raise ValueError(f"topology {text!r} {more}: each of them has a link to one other group")
    return found


def read_network(text: str, ranks: int) -> Network:
    """Read ``fattree:8x8,2,10gbit,50us``: unitless numbers are the shape's. ValueError: unreadable, or no fit."""
    fields = text.split(",")
    begin = 2 if fields[1:] and whole_number(fields[1]) is not None else 1
    topology, link = parse_topology(",".join(fields[:begin])), fields[begin:]
    topology.check_room(ranks)
    named = [field for field in link if "=" in field]
    if named:
        raise ValueError(f"network {text!r}: a topology takes no {named[0]}: its links have a rate and a latency")
    if len(link) not in (1, 2):
        raise ValueError(f"network {text!r} must be a topology and a link, as {topology},10gbit,50us")
    found = parse_link(",".join(link), f"network {text!r}: the")
    alpha, beta = found.latency_s, 1 / found.bandwidth
    return ShapedNetwork(alpha, beta, topology=topology) if topology.sizes else Network(alpha, beta)
