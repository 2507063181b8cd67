"""A collective algorithm as data: what one rank sends and receives, step by step.

An algorithm is a function of (rank, size) that returns a ``Program``. Whoever reads programs (``verify``, ``cost``,
``explain``, ``messages``) knows no algorithm by name, and whoever writes one needs nothing but these four classes.

Meaning. The buffer has ``size`` chunks. All sends of a step read what the buffer held when the step began; a
receive either replaces chunks or combines what arrives with what is there. Between one pair of ranks, messages
are matched in program order. Both ends of a message are in the same step, and all ranks have equally many steps (some
may be empty). A rank enters a step when its previous one is complete; nothing else synchronises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["COLLECTIVES", "Algorithm", "Program", "Receive", "Send", "Step"]

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


@dataclass(frozen=True)
class Send:
    """Chunks that go to a peer; ``chunks`` is a ``range`` of step 1, such as ``range(3, 4)`` for chunk 3."""

    peer: int
    chunks: range

    def __str__(self) -> str:
        return f"{label(self.chunks)} to rank {self.peer}"


@dataclass(frozen=True)
class Receive:
    """Chunks that come from a peer, to replace what is there or to be combined with it by the reduction's op."""

    peer: int
    chunks: range
    combine: bool = False

    def __str__(self) -> str:
        verb = "combined with" if self.combine else "replacing"
        return f"{label(self.chunks)} from rank {self.peer}, {verb} what is there"


@dataclass(frozen=True)
class Step:
    """One round: all of its transfers may be under way at the same time."""

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


@dataclass(frozen=True)
class Program:
    """What one rank does in one collective."""

    collective: str
    rank: int
    size: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """
        >>> step = Step((Send(1, range(0, 1)),), (Receive(1, range(1, 2), combine=True),))
        >>> print(Program("reduce_scatter", 0, 2, (step,)))
        rank 0 of 2, reduce_scatter
          step 0: send chunk 0 to rank 1; receive chunk 1 from rank 1, combined with what is there
        """
        lines = [f"rank {self.rank} of {self.size}, {self.collective}"]
        for number, step in enumerate(self.steps):
            actions = [f"send {send}" for send in step.sends] + [f"receive {receive}" for receive in step.receives]
            lines.append(f"  step {number}: {'; '.join(actions) or 'nothing'}")
        return "\n".join(lines)


Algorithm = Callable[[int, int], Program]
"""A function of (rank, size) that returns that rank's program."""


def label(chunks: range) -> str:
    """``chunk 3``, or ``chunks 2..5`` with both ends included."""
    if len(chunks) == 1:
        return f"chunk {chunks[0]}"
    return f"chunks {chunks[0]}..{chunks[-1]}" if chunks else "no chunk"
