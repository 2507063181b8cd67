r"""Represent a recorded run as a graph: the events of all ranks, and their dependencies.

    main thread   | forward 0 ---> | forward 1 ---> | ... | wait ------------> | update ...
                                          \ handed over        / is over
    engine                                  | start, end of a message, combine ... |
                                                  \ message to another rank's engine

An event comes when all its dependencies are over: each is an edge with a delay in seconds. The last one's delay is
measured, so an unchanged graph reproduces its times.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, NamedTuple, TypeAlias

import numpy as np


class Work(NamedTuple):
    """The ``nth`` repetition of a main thread's work in an iteration."""

    rank: int
    iteration: int
    name: str  # such as forward conv1
    nth: int


class Link(NamedTuple):
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"{self.sender} -> {self.receiver}"


class Sort(NamedTuple):
    """Messages of one size on a link that began when sent, or (queued) when the previous one ended."""

    link: Link
    nbytes: int
    queued: bool


Cause: TypeAlias = Work | Sort


class Edge(NamedTuple):
    """Delay the event ``after`` from the event ``before``; ``cause`` owns these seconds."""

    before: int
    after: int
    seconds: float
    cause: Cause | None = None


@dataclass(eq=False)
class Graph:
    """Attributes:
    times: of events, as measured.
    edges: that lead to each event.
    bounds: of each rank: the event that begins its first iteration, then the ends of iterations.
    """

    times: list[float] = field(default_factory=list)
    edges: list[list[Edge]] = field(default_factory=list)
    bounds: list[list[int]] = field(default_factory=list)

    def moment(self, at_s: float) -> int:
        self.times.append(at_s)
        self.edges.append([])
        return len(self.times) - 1

    def join(self, before: int, after: int, seconds: float, cause: Cause | None = None) -> None:
        self.edges[after].append(Edge(before, after, max(0.0, seconds), cause))

    def since(self, before: int, after: int) -> float:
        return self.times[after] - self.times[before]

    def after_last(self, after: int, earlier: Iterable[int]) -> None:
        """Add an event after the last of these; later ones do not delay it."""
        known = [each for each in earlier if self.times[each] <= self.times[after]]
        last = max(known, key=self.times.__getitem__, default=None)
        for each in known:
            self.join(each, after, self.since(each, after) if each == last else 0.0)

    def order(self) -> list[int]:
        before = {at: [each.before for each in to] for at, to in enumerate(self.edges)}
        return list(TopologicalSorter(before).static_order())


def replay(graph: Graph, order: Sequence[int], more_s: Mapping[Any, Any], count: int) -> Any:
    """Compute event times, (events, replays). ``more_s`` adds seconds to the edges of a cause, by replay."""
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
    """Return iterations by replay, each from last rank's end to last rank's end."""
    last = np.array([times[list(moments)].max(axis=0) for moments in zip(*graph.bounds, strict=True)])
    return np.diff(last, axis=0)
