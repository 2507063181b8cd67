"""Match sends with receives in order, as MPI matches messages of one tag."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
R = TypeVar("R")


class Lane(Generic[S, R]):
    """Unmatched sends and receives between one pair of ranks."""

    def __init__(self) -> None:
        self.sends: deque[S] = deque()
        self.receives: deque[R] = deque()

    def meetings(self) -> Iterator[tuple[S, R]]:
        """Take matching pairs from the lane."""
        while self.sends and self.receives:
            yield self.sends.popleft(), self.receives.popleft()
