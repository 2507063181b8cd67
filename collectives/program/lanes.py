"""Match sends with receives: first come, first met, as MPI matches the messages of one tag."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

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
