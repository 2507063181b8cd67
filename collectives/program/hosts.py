"""Which ranks are on one host, and how fast they send inside it and to others: what two-level algorithms ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Rates(NamedTuple):
    """What a rank sends inside its host, and to other hosts while all ranks of its host do; bytes/s."""

    inside: float
    between: float


def by_host(hosts: Sequence[int]) -> list[list[int]]:
    """The ranks of each host, by the number of the host of each rank."""
    return [[rank for rank, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]


def rates_of(inside: float, port: float, hosts: Sequence[int]) -> Rates:
    """Of ranks that have a port each inside their host, and one port together to others.

    >>> rates_of(8e9, 2e9, [0, 0, 1, 1])
    Rates(inside=8000000000.0, between=1000000000.0)
    """
    return Rates(inside, port / max(map(len, by_host(hosts))))


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
