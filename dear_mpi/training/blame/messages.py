"""What joins the ranks of a graph: messages, and collectives that cannot be looked into.

    sender     start ------ the link's seconds -----> over
    receiver     start, wait ............................ over        as soon as it has come
                                                           next message on this link

A message may need that both ends are started, and that the one before it on its link is over. The last of these says
when it began, and a rank that was blocked until it was over saw how long it took. Where nobody saw that, it is taken to
have lasted as long as the others of its size on its link, or less where it was over before.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeAlias

from dear_mpi.collectives.plans.steps import end_of, other_end
from dear_mpi.training.blame.graph import Graph, Link
from dear_mpi.training.blame.threads import Call, Joint, Threads

BLOCKED_S, BLOCKED = 20e-6, 0.1  # a wait that is longer, and than this part of its message, was one for the message
FEWEST = 5  # messages that say what is usual
STARTED, QUEUED = "started", "queued"  # what a message began after: its sender's start, or the end of the one before

Sort: TypeAlias = tuple[bool, int, str]  # an end that comes in, bytes, and what it began after


class Message(NamedTuple):
    """An end of a message that a rank waits for; moments, which may not be known."""

    call: Call
    link: Link
    sent: int | None
    posted: int | None  # by the receiver
    queued: int | None = None  # when the message before it on its link was over
    known: Sequence[int] = ()  # the moments that it may have begun after, the last one at the end
    waited: bool = False  # whether its rank was blocked until it was over

    def sort(self, after: int | None) -> Sort:
        return self.call.part.incoming, self.call.part.nbytes, QUEUED if after == self.queued else STARTED


@dataclass(eq=False)
class Messages:
    """Joins the ranks.

    Attributes:
        usual_s: of each link, the seconds of messages by their sort, where they were seen.
    """

    threads: Threads
    usual_s: dict[Link, dict[Sort, float]] = field(init=False)

    def __post_init__(self) -> None:
        self.graph, calls = self.threads.graph, self.threads.calls
        self.started = {
            (call.number, end_of(call.rank, call.part)): call.begin for call in calls if call.part.kind == "starting"
        }
        messages = self.in_queues([self.message(call) for call in calls if call.part.kind == "ending"])
        self.usual_s = self.seen(messages)
        for message in messages:
            self.join(message)
        whole = defaultdict[int, list[Joint]](list)
        for call in calls:
            if call.part.kind == "whole":
                whole[call.number].append(Joint(call.begin, call.end))
            elif call.part.kind != "ending":
                self.graph.join(call.begin, call.end, self.graph.since(call.begin, call.end))
        for together in whole.values():
            meet(self.graph, together)
        for pairs in zip(*map(reversed, self.threads.joints.values()), strict=False):  # all ranks have the last ones
            meet(self.graph, pairs)

    def message(self, call: Call) -> Message:
        rank, part = call.rank, call.part
        assert part.peer is not None, "it has another end"
        own = self.started.get((call.number, end_of(rank, part)))
        other = self.started.get((call.number, other_end(rank, part)))
        if part.incoming:
            return Message(call, Link(part.peer, rank), other, own)
        return Message(call, Link(rank, part.peer), own, other)

    def in_queues(self, messages: Sequence[Message]) -> list[Message]:
        """With the message before each on its link, as its receiver or its sender saw it."""
        queues, found, times = defaultdict[tuple[Link, bool], list[Message]](list), list[Message](), self.graph.times
        for message in messages:
            queues[message.link, message.call.part.incoming].append(message)
        for queue in queues.values():
            queue.sort(key=lambda each: times[each.call.begin if each.sent is None else each.sent])
            ends = [None, *(each.call.end for each in queue)]
            found += [self.begun(each._replace(queued=end)) for each, end in zip(queue, ends, strict=False)]
        return found

    def begun(self, message: Message) -> Message:
        """With what is known of its beginning, and of its rank's wait."""
        times, (begin, end) = self.graph.times, (message.call.begin, message.call.end)
        every = {message.posted, message.sent, message.queued}
        known = [each for each in every if each is not None and times[each] <= times[end]]
        known.sort(key=lambda each: (times[each], each))
        since = self.graph.since
        waited = bool(known) and since(begin, end) > max(BLOCKED_S, BLOCKED * since(known[-1], end))
        return message._replace(known=known, waited=waited)

    def seen(self, messages: Sequence[Message]) -> dict[Link, dict[Sort, float]]:
        found = defaultdict[Link, dict[Sort, list[float]]](lambda: defaultdict(list))
        for message in messages:
            if message.waited and (last := message.known[-1]) != message.posted:
                found[message.link][message.sort(last)].append(self.graph.since(last, message.call.end))
        return {
            link: {sort: median(all_s) for sort, all_s in sorts.items() if len(all_s) >= FEWEST}
            for link, sorts in found.items()
        }

    def join(self, message: Message) -> None:
        """A wait is over when its message is, and no sooner than it begins."""
        graph, begin, end = self.graph, message.call.begin, message.call.end
        usual_s = self.usual_s.get(message.link, {})
        graph.join(begin, end, 0.0 if message.waited else graph.since(begin, end))
        for each in message.known:
            lasted_s = graph.since(each, end)
            if not message.waited or each != message.known[-1]:
                usual = 0.0 if each == message.posted else usual_s.get(message.sort(each), 0.0)
                lasted_s = min(usual, lasted_s)
            graph.join(each, end, lasted_s, message.link)

    def ratio(self, link: Link) -> float | None:
        """How many times as long as the others, for the same messages, a link takes; None where that was not seen."""
        own, others = self.usual_s.get(link, {}), [each for other, each in self.usual_s.items() if other != link]
        taken_s = usual_s = 0.0
        for sort, seconds in own.items():  # senders see less: an end of theirs may be over long before its message
            beside = [each[sort] for each in others if sort in each]
            if sort[0] and beside:
                taken_s, usual_s = taken_s + sort[1] * seconds, usual_s + sort[1] * median(beside)
        return taken_s / usual_s if usual_s else None


def meet(graph: Graph, joints: Sequence[Joint]) -> None:
    """All are over some time after the last one has begun."""
    last_s = max(graph.times[joint.begin] for joint in joints)
    for joint in joints:
        for other in joints:
            graph.join(other.begin, joint.end, graph.times[joint.end] - last_s)
