"""What messages and sums cost, which ports they use, and how flows share ports: evenly, with nothing left unused.

        a to x      2/3     what the next flow leaves of a; a third of x stays free
        a to y      1/3
        b to y      1/3     three flows go into y, and each has a third of it
        c to y      1/3

Each flow goes through two sides of ports: the outgoing side of its sender's port, and the incoming side of its
receiver's. Flows share a side evenly. What a flow cannot use of a side, because its other side gives it less, is for
the other flows. So a flow could have more only by taking it from a flow that has no more than it has.

Source: Bertsekas and Gallager, Data Networks (1992), section 6.5, where it is called progressive filling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

TIE = 1e-10  # numbers are alike if they differ by less than this part of them: rounding makes less

Side: TypeAlias = tuple[str, tuple[str, int]]
"""The "out" or the "in" side of a port."""


@dataclass(frozen=True)
class Network:
    """What messages and sums cost: alpha in s per message, beta in s per byte, gamma in s per byte combined.

    And o in s of the processor per message, at each of its ends. Where ``hosts`` (the number of the host of each rank)
    are given, messages between hosts cost what ``between`` says; sums cost the same anywhere.
    """

    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    o: float = 0.0
    hosts: tuple[int, ...] | None = None
    between: Network | None = None

    def port(self, rank: int, peer: int) -> tuple[str, int]:
        """The port on the rank's side that a message to or from this peer uses."""
        if self.hosts is None or self.hosts[rank] == self.hosts[peer]:
            return "rank", rank
        return "host", self.hosts[rank]

    def link(self, rank: int, peer: int) -> Network:
        """What a message between two ranks costs."""
        return self if self.port(rank, peer)[0] == "rank" else self.between or self


class HasSides(Protocol):
    """A flow, as far as it matters here."""

    @property
    def sides(self) -> tuple[Side, Side]: ...


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
    """The part of its two sides that each flow has.

    The side with the least for each of its flows sets their rate. Then the side with the least left for each of its
    other flows sets theirs, and so on.
    """
    rates, free = dict[F, float](), dict.fromkeys(users, 1.0)
    waiting = {side: len(flows) for side, flows in users.items() if flows}
    while waiting:
        parts = {side: free[side] / count for side, count in waiting.items()}
        least = min(parts.values())
        tight = [side for side, part in parts.items() if part <= least * (1 + TIE)]
        for flow in (flow for side in tight for flow in users[side] if flow not in rates):
            rates[flow] = least
            for side in flow.sides:
                free[side] -= least
                waiting[side] -= 1
        waiting = {side: count for side, count in waiting.items() if count}
    return rates
