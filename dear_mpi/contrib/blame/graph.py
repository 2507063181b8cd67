"""A recorded run as a graph: moments of all ranks, and what each had to wait for.

    main thread   | forward 0 ---> | forward 1 ---> | ... | wait ------------> | update ...
                                          \\ handed over        / is over
    engine                                  | start, end of a message, combine ... |
                                                  \\ message to another rank's engine

A moment comes as soon as all that it waits for is over: for each of these there is an edge, with the seconds from there
on. What came last has what was measured, so a graph without changes gives back the times that it was made of.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, NamedTuple, TypeAlias

import numpy as np


class Work(NamedTuple):
    """Something that a main thread does in an iteration, for the ``nth`` time there; alike on all ranks."""

    rank: int
    iteration: int
    name: str  # such as: forward conv1
    nth: int


class Link(NamedTuple):
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


class Sort(NamedTuple):
    """The messages of so many bytes on a link that began when they were sent, or when the one before them was over."""

    link: Link
    nbytes: int
    queued: bool


Cause: TypeAlias = Work | Sort


class Edge(NamedTuple):
    """The moment ``after`` is no sooner than so long after the moment ``before``; ``cause``: whose seconds they are."""

    before: int
    after: int
    seconds: float
    cause: Cause | None = None


@dataclass(eq=False)
class Graph:
    """Moments by their numbers.

    Attributes:
        times: of moments, as they were measured.
        edges: that lead to each moment.
        bounds: of each rank: the moment at which its first iteration begins, then those at which iterations end.
        spent: what all main threads did: its kind, how many iterations were over, and from which moment to which.
    """

    times: list[float] = field(default_factory=list)
    edges: list[list[Edge]] = field(default_factory=list)
    bounds: list[list[int]] = field(default_factory=list)
    spent: list[tuple[str, int, int, int]] = field(default_factory=list)

    def moment(self, at_s: float) -> int:
        self.times.append(at_s)
        self.edges.append([])
        return len(self.times) - 1

    def join(self, before: int, after: int, seconds: float, cause: Cause | None = None) -> None:
        self.edges[after].append(Edge(before, after, max(0.0, seconds), cause))

    def since(self, before: int, after: int) -> float:
        return self.times[after] - self.times[before]

    def after_last(self, after: int, earlier: Iterable[int]) -> None:
        """A moment that came some time after the last of these; it does not wait for what came later."""
        known = [each for each in earlier if self.times[each] <= self.times[after]]
        last = max(known, key=self.times.__getitem__, default=None)
        for each in known:
            self.join(each, after, self.since(each, after) if each == last else 0.0)

    def order(self) -> list[int]:
        before = {at: [each.before for each in to] for at, to in enumerate(self.edges)}
        return list(TopologicalSorter(before).static_order())


def replay(graph: Graph, order: Sequence[int], more_s: Mapping[Any, Any], count: int) -> Any:
    """When each moment comes in so many replays: an array of moments and replays; ``more_s``: the seconds that edges of
    a cause take more, by replay."""
    found = np.empty((len(graph.times), count))
    for at in order:
        edges, here = graph.edges[at], found[at]
        here[:] = -np.inf if edges else graph.times[at]
        for edge in edges:
            more = more_s.get(edge.cause)
            seconds = edge.seconds if more is None else np.maximum(edge.seconds + more, 0.0)
            np.maximum(here, found[edge.before] + seconds, out=here)
    return found


def iterations_s(graph: Graph, times: Any) -> Any:
    """Seconds of iterations by replay: from when the last rank has ended one to when the last has ended the next."""
    last = np.array([times[list(moments)].max(axis=0) for moments in zip(*graph.bounds, strict=True)])
    return np.diff(last, axis=0)
