"""Connect the ranks of a graph through messages and opaque collectives.

    sender     start ------ the link's seconds -----> over
    receiver     start, wait ............................ over        as soon as it has come
                                                           next message on this link

A message begins at the last of: the start at both ends, the previous message's end on its link. A rank that was blocked
until its end observed its duration. Unobserved ones last as long as the quicker ones of their size on their link, or
less if they ended earlier.

Only messages during which both main threads waited show the speed of a link: others may have stalled while a layer held
the core, or Python's lock. Their time beyond the usual counts as that rank's.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.contrib.blame.graph import Graph, Link, Sort
from dear_mpi.contrib.blame.threads import HELD, Call, Threads
from dear_mpi.training.events.spans import BLOCKED, BLOCKED_S, end_of, other_end

FEWEST = 5  # messages for the usual time
QUICK = 25  # per cent of messages: an undisturbed link's time

Seen: TypeAlias = dict[Sort, list[float]]


class End(NamedTuple):
    """A message at a rank that waits for it; events may be unknown."""

    call: Call
    link: Link
    sent: int | None
    posted: int | None  # by the receiver
    queued: int | None = None  # the previous message's end
    known: Sequence[int] = ()  # events that it may have begun after, then its end
    waited: bool = False  # its rank was blocked until its end

    def sort(self, begun: int) -> Sort:
        return Sort(self.link, self.call.part.nbytes, begun == self.queued)


class Messages:
    """Attributes:
    seen_s: the seconds of messages whose receiver was blocked.
    alone_s: the subset that shows the speed of its link.
    usual_s: the quicker ones of seen_s.
    """

    def __init__(self, threads: Threads) -> None:
        self.threads, self.graph, calls = threads, threads.graph, threads.calls
        self.started = {
            (call.number, end_of(call.rank, call.part)): call.begin for call in calls if call.part.kind == "starting"
        }
        ends = self.in_queues([self.end(call) for call in calls if call.part.kind == "ending"])
        seen = [end for end in ends if end.call.part.incoming and end.waited and end.known[-1] != end.posted]
        self.seen_s, self.alone_s = self.lasted_s(seen), self.lasted_s(filter(self.is_alone, seen))
        self.usual_s = {sort: quick(all_s) for sort, all_s in self.seen_s.items()}
        for end in ends:
            self.join(end)
        self.join_calls()

    def end(self, call: Call) -> End:
        rank, part = call.rank, call.part
        assert part.peer is not None, "it has another end"
        own, other = (self.started.get((call.number, of(rank, part))) for of in (end_of, other_end))
        ways = (Link(rank, part.peer), own, other), (Link(part.peer, rank), other, own)
        return End(call, *ways[part.incoming])

    def in_queues(self, ends: Sequence[End]) -> list[End]:
        """Add the previous message on each link, as either end saw it."""
        queues, found, times = defaultdict[tuple[Link, bool], list[End]](list), list[End](), self.graph.times
        for end in ends:
            queues[end.link, end.call.part.incoming].append(end)
        for queue in queues.values():
            queue.sort(key=lambda each: times[each.call.begin if each.sent is None else each.sent])
            before = [None, *(each.call.end for each in queue)]
            found += [self.begun(each._replace(queued=over)) for each, over in zip(queue, before, strict=False)]
        return found

    def begun(self, end: End) -> End:
        """Add its known begin, and whether its rank waited."""
        times, since, (begin, over) = self.graph.times, self.graph.since, (end.call.begin, end.call.end)
        every = {end.posted, end.sent, end.queued}
        known = sorted((times[each], each) for each in every if each is not None and times[each] <= times[over])
        waited = bool(known) and since(begin, over) > max(BLOCKED_S, BLOCKED * since(known[-1][1], over))
        return end._replace(known=[each for _, each in known], waited=waited)

    def is_alone(self, end: End) -> bool:
        begin, over = end.known[-1], end.call.end
        return self.busiest(end.link, begin, over)[0] <= BLOCKED * self.graph.since(begin, over)

    def busiest(self, link: Link, begin: int, end: int) -> tuple[float, int]:
        return max((self.threads.main[rank].busy_s(begin, end), rank) for rank in link)

    def lasted_s(self, ends: Iterable[End]) -> Seen:
        found = defaultdict[Sort, list[float]](list)
        for end in ends:
            found[end.sort(end.known[-1])].append(self.graph.since(end.known[-1], end.call.end))
        return {sort: all_s for sort, all_s in found.items() if len(all_s) >= FEWEST}

    def join(self, end: End) -> None:
        """End a wait with its message, no sooner than it begins."""
        graph, begin, over = self.graph, end.call.begin, end.call.end
        graph.join(begin, over, 0.0 if end.waited else graph.since(begin, over))
        for each in end.known:
            sort, lasted_s = end.sort(each), graph.since(each, over)
            usual_s = 0.0 if each == end.posted else self.usual_s.get(sort, 0.0)
            if end.waited and each == end.known[-1]:
                self.join_held(each, over, sort, lasted_s - usual_s if usual_s else 0.0)
            else:
                graph.join(each, over, min(lasted_s, usual_s), sort)

    def join_held(self, begin: int, over: int, sort: Sort, more_s: float) -> None:
        """Assign a message's excess to the rank whose main thread kept its engine from the core."""
        busy_s, rank = self.busiest(sort.link, begin, over)
        if (held_s := min(busy_s, more_s)) > 0:
            free = self.graph.moment(self.graph.times[over] - held_s)
            self.graph.join(free, over, held_s, self.threads.main[rank].work(self.graph.times[over], HELD))
            over = free
        self.graph.join(begin, over, self.graph.since(begin, over), sort)

    def join_calls(self) -> None:
        whole = defaultdict[int, list[tuple[int, int]]](list)
        for call in self.threads.calls:
            if call.part.kind == "whole":
                whole[call.number].append((call.begin, call.end))
            elif call.part.kind != "ending":
                self.graph.join(call.begin, call.end, self.graph.since(call.begin, call.end))
        for together in whole.values():
            meet(self.graph, together)
        for pairs in zip(*map(reversed, self.threads.joints.values()), strict=False):  # all ranks have the last ones
            meet(self.graph, pairs)


def quick(all_s: Any) -> float:
    return float(np.percentile(all_s, QUICK))


def meet(graph: Graph, joints: Sequence[tuple[int, int]]) -> None:
    """End these events some time after the last one begins."""
    last_s = max(graph.times[begin] for begin, _ in joints)
    for _, end in joints:
        for begin, _ in joints:
            graph.join(begin, end, graph.times[end] - last_s)
