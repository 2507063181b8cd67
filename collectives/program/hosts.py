"""Which ranks are on one host, and how fast they send inside it and to others: what two-level algorithms ask for."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

UNITS = {"Tbit/s": 1e12, "Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}
INSIDE, BETWEEN = "inside hosts", "between hosts"  # the levels of such an algorithm


class Rates(NamedTuple):
    """What a rank sends inside its host, and to other hosts while all ranks of its host do; bytes/s."""

    inside: float
    between: float


def by_host(hosts: Sequence[int]) -> list[list[int]]:
    """The ranks of each host, by the number of the host of each rank."""
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.values())


def servers(rank: int, hosts: Sequence[int]) -> list[int]:
    """The ranks that bring a rank its chunk: of each host the one at the same place, itself among them.

    Where a host has fewer ranks, each of them serves several places.

    >>> [servers(rank, [0, 0, 1, 1, 1]) for rank in range(5)]
    [[0, 2], [1, 3], [0, 2], [1, 3], [0, 4]]
    """
    members, _, place = placed(rank, hosts)
    return at_place(place, members)


def at_place(place: int, members: Sequence[Sequence[int]]) -> list[int]:
    """Who serves a place, in each host."""
    return [ranks[place % len(ranks)] for ranks in members]


def served(rank: int, hosts: Sequence[int]) -> list[int]:
    """The ranks that a rank serves, of all hosts.

    >>> [served(rank, [0, 0, 1, 1, 1]) for rank in range(5)]
    [[0, 2, 4], [1, 3], [0, 2], [1, 3], [4]]
    """
    members, home, place = placed(rank, hosts)
    return [each for ranks in members for each in ranks[place :: len(home)]]


def share_served(hosts: Sequence[int]) -> float:
    """The largest share of a buffer that one rank serves.

    >>> share_served([0, 0, 1, 1]), share_served([0, 0, 1])
    (0.5, 1.0)
    """
    few = min(by_host(hosts), key=len)
    return len(served(few[0], hosts)) / len(hosts)


def placed(rank: int, hosts: Sequence[int]) -> tuple[list[list[int]], list[int], int]:
    """The ranks of each host, those of a rank's host, and its place among them."""
    members = by_host(hosts)
    home = next(ranks for ranks in members if rank in ranks)
    return members, home, home.index(rank)


def rates_of(inside: float, port: float, hosts: Sequence[int]) -> Rates:
    """Of ranks that have a port each inside their host, and one port together to others.

    >>> rates_of(8e9, 2e9, [0, 0, 1, 1])
    Rates(inside=8000000000.0, between=1000000000.0)
    """
    return Rates(inside, port / max(map(len, by_host(hosts))))


def rates_of_first(ranks: int, hosts: Sequence[int], rates: Rates | None) -> Rates | None:
    """The rates of the first so many ranks, where those of all are known: fewer of them may share the port of a host.

    >>> rates_of_first(2, [0, 1, 0, 1], Rates(8e9, 1e9))
    Rates(inside=8000000000.0, between=2000000000.0)
    """
    if rates is None:
        return None
    inside, between = rates
    return rates_of(inside, between * max(map(len, by_host(hosts))), hosts[:ranks])


@dataclass(frozen=True)
class Blocks:
    """Ranks on hosts, one host after the other: so many ``hosts`` of equally many ranks, or so many ranks on each host
    but the last (``per_host``)."""

    name: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}={self.count}"

    def hosts(self, ranks: int) -> tuple[int, ...]:
        """The host of each rank; a ValueError if the hosts would differ.

        >>> Blocks("hosts", 2).hosts(4), Blocks("per_host", 2).hosts(3)
        ((0, 0, 1, 1), (0, 0, 1))
        """
        if self.name == "hosts" and ranks % self.count:
            raise ValueError(f"{self} does not divide {ranks} ranks")
        per_host = ranks // self.count if self.name == "hosts" else self.count
        return tuple(rank // per_host for rank in range(ranks))


def spread(ranks: int, hosts: int) -> list[int]:
    """The host of each rank, as many on each as possible; a ValueError if there are more hosts than ranks.

    >>> spread(5, 2)
    [0, 0, 0, 1, 1]
    """
    if hosts > ranks:
        raise ValueError(f"hosts must be at most {ranks}, the ranks, not {hosts}")
    return [rank * hosts // ranks for rank in range(ranks)]


def format_rate(bytes_per_s: float, digits: int = 4) -> str:
    """In bits, as network cards are sold.

    >>> format_rate(1.25e9), format_rate(1.19533e8), format_rate(6.05e7, digits=2), format_rate(1.0)
    ('10 Gbit/s', '956.3 Mbit/s', '480 Mbit/s', '8 bit/s')
    """
    rounded = float(f"{8 * bytes_per_s:.{digits}g}")
    unit = next((unit for unit, least in UNITS.items() if rounded >= least), "bit/s")
    return f"{rounded / UNITS[unit]:g} {unit}"


S = TypeVar("S")
R = TypeVar("R")


class Lane(Generic[S, R]):
    """Sends from one rank to another that have not met a receive yet, and receives that have not met a send."""

    def __init__(self) -> None:
        self.sends: deque[S] = deque()
        self.receives: deque[R] = deque()

    def meetings(self) -> Iterator[tuple[S, R]]:
        """Each send with its receive, both taken from the lane, as long as there are both."""
        while self.sends and self.receives:
            yield self.sends.popleft(), self.receives.popleft()
