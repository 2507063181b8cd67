"""Match sends with receives: between two ranks, the first send meets the first receive, as MPI promises it.

Whoever moves messages, or pretends to, keeps a lane for each pair of ranks and direction: the replay of programs
(``replay.py``), their price (``cost.py``), the check of instructions, and ranks that are threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Lane"]

S = TypeVar("S")
R = TypeVar("R")


class Lane(Generic[S, R]):
    """The sends and receives from one rank to another that were started and have not met yet."""

    def __init__(self) -> None:
        self.sends: deque[S] = deque()
        self.receives: deque[R] = deque()

    def meetings(self) -> Iterator[tuple[S, R]]:
        """Take out each send with its receive, as long as there are both.

        >>> lane = Lane[str, str]()
        >>> lane.sends.extend("ab"); lane.receives.append("x")
        >>> list(lane.meetings()), list(lane.sends)
        ([('a', 'x')], ['b'])
        """
        while self.sends and self.receives:
            yield self.sends.popleft(), self.receives.popleft()
