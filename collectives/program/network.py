"""Price messages and sums, and share ports fairly among flows (max-min fairness).

    a to x      2/3     what the next flow leaves of a; a third of x stays free
    a to y      1/3
    b to y      1/3     three flows go into y, and each has a third of it
    c to y      1/3

A flow uses its sender's outgoing and its receiver's incoming side of a port; on a network with a shape, a side of every
link on its way. Flows share a side evenly, and take what limited flows leave. Twice the links mean twice the latency
and half the share, as under TCP.

Source: Bertsekas and Gallager, Data Networks (1992), section 6.5 (progressive filling).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from dear_mpi.collectives.program.hosts import Rates, rates_of

TIE = 1e-10  # equal within rounding

Side: TypeAlias = tuple[Hashable, ...]  # side of a port, or direction of a link
Way: TypeAlias = tuple[Side, ...]


@dataclass(frozen=True)
class Network:
    """Costs of messages and sums; derive networks with a shape."""

    # If only ports are shared, messages between two ranks move in order, and all hosts look the same.
    ports: ClassVar[bool] = True
    alpha: float = 0.0  # s/message
    beta: float = 0.0  # s/byte
    gamma: float = 0.0  # s/byte combined
    o: float = 0.0  # processor's s/message, at each end
    hosts: tuple[int, ...] | None = None
    between: Network | None = None

    def distance(self, rank: int, peer: int) -> int:
        """Return 0 inside a host, 1 between hosts."""
        return int(self.hosts is not None and self.hosts[rank] != self.hosts[peer])

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        """Return each rank's host, for algorithms."""
        return self.hosts

    @property
    def rates(self) -> Rates | None:
        if self.hosts is None or self.between is None:
            return None
        inside, port = (1 / each.beta if each.beta else math.inf for each in (self, self.between))
        return rates_of(inside, port, self.hosts)

    def link(self, distance: int) -> Network:
        return self.between or self if distance else self

    def port(self, rank: int, peer: int) -> tuple[str, int]:
        return ("host", self.hosts[rank]) if self.hosts and self.distance(rank, peer) else ("rank", rank)

    def way_out(self, rank: int, peer: int) -> Way:
        return (("out", self.port(rank, peer)),)

    def way_in(self, rank: int, peer: int) -> Way:
        return (("in", self.port(rank, peer)),)


class HasSides(Protocol):
    @property
    def sides(self) -> Way: ...


F = TypeVar("F", bound=HasSides)


def connected(side: Side, moving: Mapping[Side, Collection[F]]) -> dict[Side, Collection[F]]:
    found, waiting = {side: moving[side]}, [side]
    while waiting:
        for flow in found[waiting.pop()]:
            for each in flow.sides:
                if each not in found:
                    found[each] = moving[each]
                    waiting.append(each)
    return found


def fair_rates(users: Mapping[Side, Collection[F]]) -> dict[F, float]:
    """Fix rates from the tightest side on."""
    rates, free = dict[F, float](), dict.fromkeys(users, 1.0)
    waiting = {side: len(flows) for side, flows in users.items() if flows}
    weights = {side: sum([1 / len(flow.sides) for flow in users[side]]) for side in waiting}
    while waiting:
        parts = {side: free[side] / weights[side] for side in waiting}
        least = min(parts.values())
        tight = [side for side, part in parts.items() if part <= least * (1 + TIE)]
        for flow in (flow for side in tight for flow in users[side] if flow not in rates):
            weight = 1 / len(flow.sides)
            rates[flow] = rate = least * weight
            for side in flow.sides:
                free[side] -= rate
                weights[side] -= weight
                waiting[side] -= 1
        waiting = {side: count for side, count in waiting.items() if count}
    return rates
