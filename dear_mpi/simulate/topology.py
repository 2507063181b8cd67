"""Networks with a shape, for SimGrid: how a user names one, and how its platform file describes it.

    star                  every rank has a port to one switch that is never full: the network of ``cost``
    fattree:8x8,2         8 leaves of 8 ranks; 2 links go up from each leaf, where 8 would be needed: 4:1 oversubscribed
    torus:8x8             8 rows of 8 ranks, in two rings each (any number of dimensions, the last one first by rank)
    dragonfly:4x2x4x2     4 groups of 2 chassis of 4 routers of 2 ranks; one link to each of a router's neighbours

Every link has two directions and the same bandwidth. Ranks are numbered leaf by leaf, row by row, router by router.

Source: SimGrid's manual, "Cluster topologies"; dragonfly as in Cray's Cascade (Faanes et al., SC 2012).
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.kernels.lookup import lookup

MOST_PLACES, MOST_LINKS = 2**16, 2**18  # SimGrid builds all of them for every replay: some 10 s, and 300 MB


@dataclass(frozen=True)
class Kind:
    """What the topologies of one name have in common.

    Attributes:
        example: how one is written; its first word is the name.
        dimensions: how many sizes it has; None stands for any number from 1 on.
        has_up_links: whether a number of links follows the sizes.
        near: how many sizes, the last ones, describe a neighbourhood: a leaf, a row, a chassis.
        parameters: SimGrid's ``topology`` and ``topo_parameters``, out of the sizes and the number of links.
        links: how many there are, of the same.
    """

    example: str
    dimensions: int | None
    has_up_links: bool
    near: int
    parameters: Callable[[tuple[int, ...], int], tuple[str, str]]
    links: Callable[[tuple[int, ...], int], int]


def tree(sizes: tuple[int, ...], up_links: int) -> tuple[str, str]:
    """Two levels from below: ranks of a leaf, leaves; then links up from each of them, to as many switches."""
    leaves, ranks = sizes
    return "FAT_TREE", f"2;{ranks},{leaves};1,{up_links};1,1"


def rings(sizes: tuple[int, ...], up_links: int) -> tuple[str, str]:
    """SimGrid numbers the first dimension fastest; here that is the last, as in an array of ranks."""
    return "TORUS", ",".join(map(str, reversed(sizes)))


def groups(sizes: tuple[int, ...], up_links: int) -> tuple[str, str]:
    """At each level how many there are, and how many links join two of them."""
    *levels, nodes = sizes
    return "DRAGONFLY", ";".join([*(f"{level},1" for level in levels), str(nodes)])


def group_links(sizes: tuple[int, ...], up_links: int) -> int:
    """The ranks' links, and one for each pair of routers of a chassis, of a place in the chassis, and of groups."""
    count, chassis, routers, ranks = sizes
    inside = chassis * math.comb(routers, 2) + routers * math.comb(chassis, 2) + chassis * routers * ranks
    return count * inside + math.comb(count, 2)


KINDS = (
    Kind("star", 0, False, 0, lambda sizes, up_links: ("FLAT", ""), lambda sizes, up_links: 0),
    Kind("fattree:8x8,2", 2, True, 1, tree, lambda sizes, up_links: sizes[0] * (sizes[1] + up_links)),
    Kind("torus:8x8", None, False, 1, rings, lambda sizes, up_links: math.prod(sizes) * len(sizes)),
    Kind("dragonfly:4x2x4x2", 4, False, 2, groups, group_links),
)
TOPOLOGIES = {kind.example.partition(":")[0]: kind for kind in KINDS}


@dataclass(frozen=True)
class Topology:
    """The shape of a network: its name, the sizes of its levels or dimensions, and links up from a leaf of a tree."""

    name: str
    sizes: tuple[int, ...] = ()
    up_links: int = 0

    @property
    def places(self) -> int | None:
        """The number of ranks that it has room for; None for a star, which has as many ports as there are ranks."""
        return math.prod(self.sizes) if self.sizes else None

    def check_room(self, ranks: int) -> None:
        """See that so many ranks fit.

        Raises:
            ValueError: it has not so many places.
        """
        if not 1 <= ranks <= (self.places or ranks):
            room = f"topology {str(self)!r} has places for {self.places or 'any number of'} ranks"
            raise ValueError(f"{room}, not for {ranks}")

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        """The number of the leaf, row or chassis of each rank; None for a star, where all are equally near.

        >>> parse_topology("dragonfly:2x1x2x2").neighbourhoods(8)
        (0, 0, 0, 0, 1, 1, 1, 1)
        """
        near = TOPOLOGIES[self.name].near
        return tuple(rank // math.prod(self.sizes[-near:]) for rank in range(ranks)) if near else None

    def __str__(self) -> str:
        links = f",{self.up_links}" if self.up_links else ""
        return f"{self.name}:{'x'.join(map(str, self.sizes))}{links}" if self.sizes else self.name


def parse_topology(text: str) -> Topology:
    """Read a topology as users write it.

    Raises:
        ValueError: there is no such topology; its sizes are too few, too many, 0 or too large for SimGrid; or a
            dragonfly has more groups than routers in a chassis.

    >>> parse_topology("fattree:8x8,2")
    Topology(name='fattree', sizes=(8, 8), up_links=2)
    >>> parse_topology("torus:4")
    Topology(name='torus', sizes=(4,), up_links=0)
    """
    name = text.partition(":")[0]
    kind = lookup("topology", name, TOPOLOGIES)
    match = re.fullmatch(r"(?::([0-9]+(?:x[0-9]+)*)(?:,([0-9]+))?)?", text.removeprefix(name))
    sizes = tuple(map(int, match[1].split("x"))) if match and match[1] else ()
    has_up_links = match is not None and match[2] is not None
    count_fits = len(sizes) == kind.dimensions if kind.dimensions is not None else bool(sizes)
    if match is None or not count_fits or has_up_links != kind.has_up_links:
        raise ValueError(f"topology {text!r} cannot be read: write it like {kind.example}")
    found = Topology(name, sizes, int(match[2] or 0))
    if 0 in sizes or (kind.has_up_links and found.up_links == 0):
        raise ValueError(f"topology {text!r} has a 0 in it: sizes and links must be at least 1, as in {kind.example}")
    places, links = found.places or 0, kind.links(sizes, found.up_links)
    if places > MOST_PLACES or links > MOST_LINKS:
        most = f"more than {MOST_PLACES} and {MOST_LINKS} are too many for SimGrid"
        raise ValueError(f"topology {text!r} has {places} places and {links} links: {most}")
    if name == "dragonfly" and sizes[0] > sizes[2]:  # it would crash
        raise ValueError(
            f"topology {text!r} has {sizes[0]} groups, more than the {sizes[2]} routers of a chassis: in SimGrid each"
            " of them has a link to one other group"
        )
    return found


def platform(topology: Topology, ranks: int, *, alpha: float, beta: float) -> str:
    """SimGrid's description of a network, as XML, with hosts ``rank-0``, ``rank-1`` and so on.

    Args:
        alpha: seconds of latency through two links, so of a message between two ranks of a star, or of a leaf; each
            further link adds half of it.
        beta: seconds per byte of a link, in each direction.

    Raises:
        ValueError: the topology has not so many places, or there are no such links.
    """
    if not (0 <= alpha < math.inf and 0 < beta < math.inf):
        raise ValueError(f"SimGrid needs links of alpha >= 0 and beta > 0 seconds, not alpha {alpha} and beta {beta}")
    topology.check_room(ranks)
    shape, parameters = TOPOLOGIES[topology.name].parameters(topology.sizes, topology.up_links)
    return PLATFORM.format(
        radical=f"0-{(topology.places or ranks) - 1}",
        bandwidth=f"{1 / beta!r}Bps",
        latency=f"{alpha / 2!r}s",
        shape=f' topology="{shape}" topo_parameters="{parameters}"' if parameters else "",
    )


PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="network" prefix="rank-" suffix="" radical="{radical}" speed="1Gf" bw="{bandwidth}" lat="{latency}"
    sharing_policy="SPLITDUPLEX"{shape}/>
</platform>
"""
