"""What joins the ranks of a graph: messages, and collectives that cannot be looked into.

    sender     start ------ the link's seconds -----> over
    receiver     start, wait ............................ over        as soon as it has come
                                                           next message on this link

A message may need that both ends are started, and that the one before it on its link is over. The last of these says
when it began, and a rank that was blocked until it was over saw how long it took. Where nobody saw that, it is taken to
have lasted as long as the quicker ones of its size on its link, or less where it was over before.

How fast a link is, its messages say that began on a link at rest, while both main threads waited: others may have
stood still until a layer left a core, or Python's lock, to an engine.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.collectives.plans.steps import end_of, other_end
from dear_mpi.training.blame.graph import Graph, Link, Size
from dear_mpi.training.blame.threads import Call, Joint, Threads

BLOCKED_S, BLOCKED = 20e-6, 0.1  # a wait that is longer, and than this part of its message, was one for the message
FEWEST = 5  # messages that say what is usual
QUICK = 25  # per cent of messages are quicker than what a link takes when nothing else delays it

Seen: TypeAlias = dict[Size, list[float]]


class End(NamedTuple):
    """Of a message, at a rank that waits for it; moments, which may not be known."""

    call: Call
    size: Size
    sent: int | None
    posted: int | None  # by the receiver
    queued: int | None = None  # when the message before it on its link was over
    known: Sequence[int] = ()  # the moments that it may have begun after, the last one at the end
    waited: bool = False  # whether its rank was blocked until it was over


SENT, QUEUED = attrgetter("sent"), attrgetter("queued")  # what a message began after


@dataclass(eq=False)
class Messages:
    """Joins the ranks.

    Attributes:
        seen_s: the seconds of messages that began when they were sent, and of those that began when the one before them
            was over.
        alone_s: of these, those that say how fast their link is.
    """

    threads: Threads
    seen_s: list[Seen] = field(init=False)
    alone_s: list[Seen] = field(init=False)

    def __post_init__(self) -> None:
        self.graph, calls = self.threads.graph, self.threads.calls
        self.started = {
            (call.number, end_of(call.rank, call.part)): call.begin for call in calls if call.part.kind == "starting"
        }
        ends = self.in_queues([self.end(call) for call in calls if call.part.kind == "ending"])
        seen = [end for end in ends if end.call.part.incoming and end.waited]
        sorts = [[end for end in seen if end.known[-1] == begun(end)] for begun in (SENT, QUEUED)]
        self.seen_s = [self.lasted_s(each) for each in sorts]
        self.alone_s = [self.lasted_s(filter(self.is_alone, each)) for each in sorts]
        usual_s = [{size: quick(all_s) for size, all_s in each.items()} for each in self.seen_s]
        for end in ends:
            self.join(end, {SENT(end): usual_s[0], QUEUED(end): usual_s[1]})
        self.join_calls()

    def end(self, call: Call) -> End:
        rank, part = call.rank, call.part
        assert part.peer is not None, "it has another end"
        own, other = (self.started.get((call.number, of(rank, part))) for of in (end_of, other_end))
        if part.incoming:
            return End(call, Size(Link(part.peer, rank), part.nbytes), other, own)
        return End(call, Size(Link(rank, part.peer), part.nbytes), own, other)

    def in_queues(self, ends: Sequence[End]) -> list[End]:
        """With the message before each on its link, as its receiver or its sender saw it."""
        queues, found, times = defaultdict[tuple[Link, bool], list[End]](list), list[End](), self.graph.times
        for end in ends:
            queues[end.size.link, end.call.part.incoming].append(end)
        for queue in queues.values():
            queue.sort(key=lambda each: times[each.call.begin if each.sent is None else each.sent])
            before = [None, *(each.call.end for each in queue)]
            found += [self.begun(each._replace(queued=over)) for each, over in zip(queue, before, strict=False)]
        return found

    def begun(self, end: End) -> End:
        """With what is known of its beginning, and of its rank's wait."""
        times, since, (begin, over) = self.graph.times, self.graph.since, (end.call.begin, end.call.end)
        every = {end.posted, end.sent, end.queued}
        known = sorted((times[each], each) for each in every if each is not None and times[each] <= times[over])
        waited = bool(known) and since(begin, over) > max(BLOCKED_S, BLOCKED * since(known[-1][1], over))
        return end._replace(known=[each for _, each in known], waited=waited)

    def is_alone(self, end: End) -> bool:
        times = self.graph.times
        return all(self.threads.waits(rank, times[end.known[-1]], times[end.call.end]) for rank in end.size.link)

    def lasted_s(self, ends: Iterable[End]) -> Seen:
        found = defaultdict[Size, list[float]](list)
        for end in ends:
            found[end.size].append(self.graph.since(end.known[-1], end.call.end))
        return {size: all_s for size, all_s in found.items() if len(all_s) >= FEWEST}

    def join(self, end: End, usual_s: dict[int | None, dict[Size, float]]) -> None:
        """A wait is over when its message is, and no sooner than it begins; ``usual_s``: of messages by their size,
        from this moment on."""
        graph, begin, over = self.graph, end.call.begin, end.call.end
        graph.join(begin, over, 0.0 if end.waited else graph.since(begin, over))
        for each in end.known:
            lasted_s = graph.since(each, over)
            if not end.waited or each != end.known[-1]:
                lasted_s = min(lasted_s, usual_s.get(each, {}).get(end.size, 0.0))
            graph.join(each, over, lasted_s, end.size)

    def beside(self, size: Size) -> tuple[list[float], list[list[float]]] | None:
        """The seconds of a link's messages that say how fast it is, and those of each other link; None without both.

        Those that were sent onto a free link come first; of a link that is never free those in its queue count, beside
        such of the others. No others need to be alone: one that was held up makes a link no slower beside it.
        """
        for own, seen in zip(self.alone_s, self.seen_s, strict=True):
            for each in (seen, *self.seen_s):
                others = [
                    all_s for (link, nbytes), all_s in each.items() if nbytes == size.nbytes and link != size.link
                ]
                if size in own and others:
                    return own[size], others
        return None

    def join_calls(self) -> None:
        """All that are no ends of messages."""
        whole = defaultdict[int, list[Joint]](list)
        for call in self.threads.calls:
            if call.part.kind == "whole":
                whole[call.number].append(Joint(call.begin, call.end))
            elif call.part.kind != "ending":
                self.graph.join(call.begin, call.end, self.graph.since(call.begin, call.end))
        for together in whole.values():
            meet(self.graph, together)
        for pairs in zip(*map(reversed, self.threads.joints.values()), strict=False):  # all ranks have the last ones
            meet(self.graph, pairs)


def quick(all_s: Any) -> float:
    return float(np.percentile(all_s, QUICK))


def meet(graph: Graph, joints: Sequence[Joint]) -> None:
    """All are over some time after the last one has begun."""
    last_s = max(graph.times[joint.begin] for joint in joints)
    for joint in joints:
        for other in joints:
            graph.join(other.begin, joint.end, graph.times[joint.end] - last_s)
