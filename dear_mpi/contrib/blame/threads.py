"""Build each rank's part of the graph: the activities of its two threads."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.contrib.blame.graph import Cause, Graph, Work
from dear_mpi.training.events.spans import COMPUTE, WIRE, Rank, Run, Span

BEGIN, END = "begin", "end"  # of an iteration
MARKS = {END: 1, BEGIN: 2}  # after other items at that time
HELD = "holding up its engine"
JOINING = ("reduce_scatter", "all_gather", "all_reduce", "exchange", "other")  # spans with other ranks


class Call(NamedTuple):
    """A call inside a collective, between two events of a rank."""

    number: int  # of the collective
    rank: int
    part: Part
    begin: int
    end: int


@dataclass(eq=False)
class Threads:
    """``joints``: per rank, collectives without notes: the events of the earliest begin and of the end."""

    run: Run
    graph: Graph = field(default_factory=Graph)
    calls: list[Call] = field(default_factory=list)
    joints: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    main: dict[int, MainThread] = field(default_factory=dict)  # by rank

    def __post_init__(self) -> None:
        for rank in self.run.ranks:
            main = self.main[rank.number] = MainThread(self.graph, rank)
            main.await_engine(EngineThread(self, rank, main).carried)


class MainThread:
    def __init__(self, graph: Graph, rank: Rank) -> None:
        self.graph, self.number = graph, rank.number
        self.begins = [each.begin_s for each in rank.iterations]
        self.moments, self.waits, self.seen = list[int](), list[tuple[Span, int, int]](), Counter[tuple[int, str]]()
        begins, ends = list[int](), list[int]()
        for item in items_of(rank):
            begin = self.go_on(item.begin_s, self.work(item.begin_s, f"before {item.name}"))
            if item.kind in (BEGIN, END):
                (begins if item.kind == BEGIN else ends).append(begin)
                continue
            end = self.go_on(item.end_s, None if item.kind == "wait" else self.work(item.begin_s, item.name))
            if item.kind == "wait":
                self.waits.append((item, begin, end))
        graph.bounds.append([begins[0], *ends])
        self.times = [graph.times[each] for each in self.moments]
        self.idle_s = [(graph.times[begin], graph.times[end]) for _, begin, end in self.waits]

    def work(self, begin_s: float, name: str) -> Work:
        iteration = max(0, bisect_right(self.begins, begin_s) - 1)
        self.seen[iteration, name] += 1
        return Work(self.number, iteration, name, self.seen[iteration, name])

    def go_on(self, at_s: float, cause: Cause | None) -> int:
        """Add the next event; without a cause it ends a wait and is connected later."""
        graph = self.graph
        moment = graph.moment(max(at_s, graph.times[self.moments[-1]]) if self.moments else at_s)
        if self.moments and cause is not None:
            graph.join(self.moments[-1], moment, graph.since(self.moments[-1], moment), cause)
        self.moments.append(moment)
        return moment

    def before(self, at_s: float) -> int | None:
        place = bisect_right(self.times, at_s) - 1
        return self.moments[place] if place >= 0 else None

    def busy_s(self, begin: int, end: int) -> float:
        """Seconds between two events, except waits for the engine."""
        begin_s, end_s = self.graph.times[begin], self.graph.times[end]
        first, last = max(0, bisect_right(self.idle_s, (begin_s, inf)) - 1), bisect_right(self.idle_s, (end_s,))
        idle_s = (min(end_s, over_s) - max(begin_s, since_s) for since_s, over_s in self.idle_s[first:last])
        return end_s - begin_s - sum(max(0.0, each) for each in idle_s)

    def await_engine(self, carried: Sequence[tuple[str, int]]) -> None:
        """End waits with their operation: the last of its name that had ended by then; of all if none has it."""
        times, every, named = self.graph.times, [end for _, end in carried], defaultdict[str, list[int]](list)
        for name, end in carried:
            named[name].append(end)
        for span, begin, end in self.waits:
            ends = named.get(span.name.removeprefix("wait for "), every)
            over = bisect_right(ends, times[end], key=times.__getitem__)
            self.graph.after_last(end, [begin, *ends[max(0, over - 1) : over]])


def items_of(rank: Rank) -> list[Span]:
    """A main thread's activities in and between iterations, with events."""
    first_s, last_s = rank.iterations[0].begin_s, rank.iterations[-1].end_s
    items = [span for span in rank.spans if span.lane == COMPUTE and first_s <= span.begin_s and span.end_s <= last_s]
    for number, begin_s, end_s in rank.iterations:
        items.append(Span(COMPUTE, BEGIN, f"iteration {number - rank.iterations[0].number}", begin_s, begin_s))
        items.append(Span(COMPUTE, END, f"end of {number - rank.iterations[0].number}", end_s, end_s))
    return sorted(items, key=lambda item: (item.begin_s, item.end_s, MARKS.get(item.kind, 0)))


class EngineThread:
    def __init__(self, threads: Threads, rank: Rank, main: MainThread) -> None:
        self.threads, self.graph, self.rank, self.main = threads, threads.graph, rank, main
        self.last: int | None = None
        self.carried = list[tuple[str, int]]()  # operations' names and end events
        spans = [span for span in rank.spans if span.lane == WIRE and span.end_s >= rank.iterations[0].begin_s]
        begins = [noted.begin_s for noted in rank.noted]
        for span in spans:
            inside = rank.noted[bisect_right(begins, span.begin_s - 1e-9) : bisect_right(begins, span.end_s)]
            self.carry(span, inside)

    def carry(self, span: Span, inside: Sequence[Noted]) -> None:
        args = span.args or {}
        handed = self.main.before(span.begin_s - args["queued_s"]) if "queued_s" in args else None
        joint = not inside and span.kind in JOINING
        known = [each for each in (self.last, handed) if each is not None]
        times = [self.graph.times[each] for each in known]
        begin = self.graph.moment(max(times, default=span.begin_s) if joint else span.begin_s)
        self.graph.after_last(begin, known)
        self.last = begin
        for noted in inside:
            for part, _, end_s in noted.calls():
                end = self.graph.moment(max(end_s, self.graph.times[self.last]))
                self.threads.calls.append(Call(noted.number, self.rank.number, part, self.last, end))
                self.last = end
        end = self.graph.moment(max(span.end_s, self.graph.times[self.last]))
        if joint:
            self.threads.joints[self.rank.number].append((begin, end))
        else:
            self.graph.after_last(end, [self.last])
        self.last = end
        self.carried.append((span.name, end))
