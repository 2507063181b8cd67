"""What messages and sums cost, which ports they use, and how flows share ports: fairly, with nothing left unused.

        a to x      2/3     what the next flow leaves of a; a third of x stays free
        a to y      1/3
        b to y      1/3     three flows go into y, and each has a third of it
        c to y      1/3

Each flow goes through two sides of ports: the outgoing side of its sender's port, and the incoming side of its
receiver's. Flows share a side evenly. What a flow cannot use of a side, because its other side gives it less, is for
the other flows. So a flow could have more only by taking it from a flow that has no more than it has.

On a network with a topology (``dear_mpi/simulate/topology.py``) a flow goes through one side of each link on its way.
A flow with twice as many links on its way, and so twice the latency, has half the share, as under TCP.

Source: Bertsekas and Gallager, Data Networks (1992), section 6.5, where it is called progressive filling.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from dear_mpi.collectives.program.hosts import Rates, rates_of

TIE = 1e-10  # numbers are alike if they differ by less than this part of them: rounding makes less

Side: TypeAlias = tuple[Hashable, ...]  # the "out" or the "in" side of a port, or one direction of a link
Way: TypeAlias = tuple[Side, ...]


@dataclass(frozen=True)
class Network:
    """What messages and sums cost. Sums cost the same anywhere."""

    # Whether messages between two ranks move one after the other; if not, each shares links as if it were alone.
    in_order: ClassVar[bool] = True
    alpha: float = 0.0  # s per message
    beta: float = 0.0  # s per byte
    gamma: float = 0.0  # s per byte combined
    o: float = 0.0  # s of the processor per message, at each of its ends
    hosts: tuple[int, ...] | None = None  # the number of the host of each rank
    between: Network | None = None  # what messages between hosts cost

    def distance(self, rank: int, peer: int) -> int:
        """What tells messages apart that do not cost the same: 0 inside a host, 1 between hosts."""
        return int(self.hosts is not None and self.hosts[rank] != self.hosts[peer])

    @property
    def rates(self) -> Rates | None:
        """How fast a rank sends inside its host and between hosts; None where both are one network."""
        if self.hosts is None or self.between is None:
            return None
        inside, port = (1 / each.beta if each.beta else math.inf for each in (self, self.between))
        return rates_of(inside, port, self.hosts)

    def link(self, distance: int) -> Network:
        """What a message over this distance costs."""
        return self.between or self if distance else self

    def port(self, rank: int, peer: int) -> tuple[str, int]:
        """The rank's port for messages to and from this peer."""
        return ("host", self.hosts[rank]) if self.hosts and self.distance(rank, peer) else ("rank", rank)

    def way_out(self, rank: int, peer: int) -> Way:
        """What a message to this peer goes through, on the rank's side."""
        return (("out", self.port(rank, peer)),)

    def way_in(self, rank: int, peer: int) -> Way:
        return (("in", self.port(rank, peer)),)


class HasSides(Protocol):
    """A flow, as far as it matters here."""

    @property
    def sides(self) -> Way: ...


F = TypeVar("F", bound=HasSides)


def connected(side: Side, moving: Mapping[Side, Collection[F]]) -> dict[Side, Collection[F]]:
    """The flows at this side, and at every side that a chain of flows connects with it."""
    found, waiting = {side: moving[side]}, [side]
    while waiting:
        for flow in found[waiting.pop()]:
            for each in flow.sides:
                if each not in found:
                    found[each] = moving[each]
                    waiting.append(each)
    return found


def fair_rates(users: Mapping[Side, Collection[F]]) -> dict[F, float]:
    """The part of its sides that each flow has: the side with the least for each of its flows sets their rate, then the
    side with the least left for each of its other flows sets theirs, and so on."""
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
