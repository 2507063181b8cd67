"""What messages and sums cost, and which ports they use."""

from __future__ import annotations

from dataclasses import dataclass


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
