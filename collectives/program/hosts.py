"""Describe which ranks share a host, and their rates."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

UNITS = {"Tbit/s": 1e12, "Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}
INSIDE, BETWEEN, NEXT = "inside hosts", "between hosts", "next rank"


class Rates(NamedTuple):
    """Bytes/s of a rank inside its host, and to others while its whole host sends."""

    inside: float
    between: float


def by_host(hosts: Sequence[Hashable]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def servers(rank: int, hosts: Sequence[int]) -> list[int]:
    """Return the ranks, one per host at the rank's place, that bring a rank its chunk.

    >>> [servers(rank, [0, 0, 1, 1, 1]) for rank in range(5)]
    [[0, 2], [1, 3], [0, 2], [1, 3], [0, 4]]
    """
    members, _, place = placed(rank, hosts)
    return at_place(place, members)


def at_place(place: int, members: Sequence[Sequence[int]]) -> list[int]:
    return [ranks[place % len(ranks)] for ranks in members]


def served(rank: int, hosts: Sequence[int]) -> list[int]:
    """Return the ranks that a rank serves.

    >>> [served(rank, [0, 0, 1, 1, 1]) for rank in range(5)]
    [[0, 2, 4], [1, 3], [0, 2], [1, 3], [4]]
    """
    members, home, place = placed(rank, hosts)
    return [each for ranks in members for each in ranks[place :: len(home)]]


def share_served(hosts: Sequence[int]) -> float:
    """Return the largest share of a buffer that one rank serves.

    >>> share_served([0, 0, 1, 1]), share_served([0, 0, 1])
    (0.5, 1.0)
    """
    few = min(by_host(hosts), key=len)
    return len(served(few[0], hosts)) / len(hosts)


def placed(rank: int, hosts: Sequence[int]) -> tuple[list[list[int]], list[int], int]:
    """Return each host's ranks, this host's, and the rank's place there."""
    members = by_host(hosts)
    home = next(ranks for ranks in members if rank in ranks)
    return members, home, home.index(rank)


def rates_of(inside: float, port: float, hosts: Sequence[int]) -> Rates:
    """Return the rates of ranks that share one port per host.

    >>> rates_of(8e9, 2e9, [0, 0, 1, 1])
    Rates(inside=8000000000.0, between=1000000000.0)
    """
    return Rates(inside, port / max(map(len, by_host(hosts))))


@dataclass(frozen=True)
class Blocks:
    """Ranks on consecutive hosts: ``hosts`` of equal size, or ``per_host`` ranks on all but the last."""

    name: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}={self.count}"

    def hosts(self, ranks: int) -> tuple[int, ...]:
        """Return each rank's host; ValueError if hosts would differ in size.

        >>> Blocks("hosts", 2).hosts(4), Blocks("per_host", 2).hosts(3)
        ((0, 0, 1, 1), (0, 0, 1))
        """
        if self.name == "hosts" and ranks % self.count:
            raise ValueError(f"{self} does not divide {ranks} ranks")
        per_host = ranks // self.count if self.name == "hosts" else self.count
        return tuple(rank // per_host for rank in range(ranks))


def spread(ranks: int, hosts: int) -> list[int]:
    """Return each rank's host, spread evenly.

    >>> spread(5, 2)
    [0, 0, 0, 1, 1]
    """
    if hosts > ranks:
        raise ValueError(f"hosts must be at most {ranks}, the ranks, not {hosts}")
    return [rank * hosts // ranks for rank in range(ranks)]


def format_rate(bytes_per_s: float, digits: int = 4) -> str:
    """Format a rate in bits, as for network cards.

    >>> format_rate(1.25e9), format_rate(1.19533e8), format_rate(6.05e7, digits=2), format_rate(1.0)
    ('10 Gbit/s', '956.3 Mbit/s', '480 Mbit/s', '8 bit/s')
    """
    rounded = float(f"{8 * bytes_per_s:.{digits}g}")
    unit = next((unit for unit, least in UNITS.items() if rounded >= least), "bit/s")
    return f"{rounded / UNITS[unit]:g} {unit}"


S = TypeVar("S")
R = TypeVar("R")


class Lane(Generic[S, R]):
    """Unmatched sends and receives between two ranks, matched in order as MPI does for one tag."""

    def __init__(self) -> None:
        self.sends: deque[S] = deque()
        self.receives: deque[R] = deque()

    def meetings(self) -> Iterator[tuple[S, R]]:
        while self.sends and self.receives:
            yield self.sends.popleft(), self.receives.popleft()
