"""Simulate programs on a network, event by event; ``cost.py`` describes the model.

        rank 0 enters a step that sends to 1 ---.
                                                 `-- alpha --> the flow from 0 to 1 moves the message --> done
        rank 1 enters the step that receives it ---'

The end of a message depends on other flows at its ports. When a flow starts or stops, connected flows get new rates,
until the first of them finishes a message.
"""

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Lane
from dear_mpi.collectives.program.network import TIE, Network, Side, Way, connected, fair_rates
from dear_mpi.collectives.program.program import Program

# Seconds or bytes: a number here, an array over many sizes in ``dear_mpi/simulate/prices/lockstep.py``.
Number: TypeAlias = Any


@dataclass
class Progress:
    """A rank on its way through its program."""

    program: Program
    number: int = -1
    entered_s: Number = 0.0  # start of the current step
    done_s: Number = 0.0  # end of its last completed message
    busy_s: Number = 0.0  # end of its processor's work
    left: int = 0  # incomplete messages of the step


@dataclass(eq=False, slots=True)
class Due:
    """An event that may be cancelled."""

    time_s: Number
    what: Callable[..., None]
    arguments: tuple[object, ...]
    off: bool = False


class Message(NamedTuple):
    """A message that both ends have posted."""

    moves_s: Number
    nbytes: Number
    combine: bool


@dataclass(eq=False, slots=True)
class Flow:
    """All messages from one rank to another, in order."""

    source: int
    target: int
    sides: Way
    link: Network
    # Sends (ready time, bytes) and receives (ready time, combine).
    posted: Lane[tuple[Number, Number], tuple[Number, bool]] = field(default_factory=Lane)
    queue: deque[Message] = field(default_factory=deque)  # the first one is moving
    rate: float = 1.0  # share of its sides
    over_s: Number = 0.0  # end of the first message at this rate
    look: Due | None = None  # next look at this flow and at connected flows


class Simulation:
    """Ranks, flows between them, and events in order of time."""

    latest: Callable[[Number, Number], Number] = staticmethod(max)

    def __init__(self, programs: Sequence[Program], offsets: Sequence[int], network: Network) -> None:
        self.offsets, self.network = offsets, network
        self.ranks = [Progress(program) for program in programs]
        self.flows: dict[tuple[int, int], Flow] = {}
        self.moving: dict[Side, dict[Flow, None]] = defaultdict(dict)
        self.changed: dict[Side, list[Number]] = defaultdict(list)
        self.events: list[tuple[float, int, Due]] = []
        self.numbers = itertools.count()
        self.start_s: Number = 0.0

    def nbytes(self, chunks: range) -> Number:
        return self.offsets[chunks.stop] - self.offsets[chunks.start]

    def seen_by(self, rank: int, peer: int) -> tuple[int, int]:
        return rank, peer

    def key(self, time_s: Number) -> float:
        return float(time_s)

    def moment(self, times_s: Sequence[Number], places: Iterable[object]) -> Number:
        """Return the common time of simultaneous events at these places."""
        # Also called for a single time: ``dear_mpi/simulate/prices/lockstep.py`` records its places.
        return max(times_s)

    def later(self, time_s: Number, what: Callable[..., None], *arguments: object) -> Due:
        event = Due(time_s, what, arguments)
        heapq.heappush(self.events, (self.key(time_s), next(self.numbers), event))
        return event

    def to_the_end(self, arrivals_s: Sequence[Number] = ()) -> None:
        """Run until nothing is left; each rank starts at its arrival or at ``start_s``."""
        for rank, arrival_s in enumerate(arrivals_s or [self.start_s] * len(self.ranks)):
            self.later(arrival_s, self.enter, rank)
        while self.events:
            last = self.events[0][0] * (1 + TIE)
            while self.events and self.events[0][0] <= last:
                _, _, event = heapq.heappop(self.events)
                if not event.off:
                    event.what(event.time_s, *event.arguments)
            while self.changed:
                self.share(next(iter(self.changed)))
        if any(rank.number < len(rank.program.steps) for rank in self.ranks):
            raise ProgramError("the programs deadlock: verify() names the rank and the step")

    def enter(self, time_s: Number, index: int) -> None:
        """Begin a rank's next step: post its messages, and start each one that both ends have posted."""
        rank = self.ranks[index]
        rank.number += 1
        rank.entered_s = rank.done_s = rank.busy_s = time_s
        if rank.number == len(rank.program.steps):
            return
        step = rank.program.steps[rank.number]
        rank.left = len(step.sends) + len(step.receives)
        sends = [self.flow(*self.seen_by(send.peer, index)) for send in step.sends]
        receives = [self.flow(index, receive.peer) for receive in step.receives]
        for flow, send in zip(sends, step.sends, strict=True):
            rank.busy_s = rank.busy_s + flow.link.o
            flow.posted.sends.append((rank.busy_s, self.nbytes(send.chunks)))
        for flow, receive in zip(receives, step.receives, strict=True):
            flow.posted.receives.append((time_s, receive.combine))
        for flow in dict.fromkeys(sends + receives):
            for (handed_s, nbytes), (posted_s, combine) in flow.posted.meetings():
                moves_s = self.latest(handed_s, posted_s) + flow.link.alpha
                self.later(moves_s, self.move, flow, Message(moves_s, nbytes, combine))
        self.leave(index)

    def flow(self, index: int, peer: int) -> Flow:
        if (index, peer) not in self.flows:
            source, target = self.seen_by(peer, index)
            sides = (*self.network.way_out(source, target), *self.network.way_in(index, peer))
            link = self.network.link(self.network.distance(index, peer))
            self.flows[index, peer] = Flow(source, index, sides, link)
        return self.flows[index, peer]

    def move(self, time_s: Number, flow: Flow, message: Message) -> None:
        if flow.queue and not self.network.in_order:
            flow = Flow(flow.source, flow.target, flow.sides, flow.link, flow.posted)
        flow.queue.append(message)
        if len(flow.queue) == 1:
            flow.rate, flow.over_s = 1.0, time_s + message.nbytes * flow.link.beta
            for side in flow.sides:
                self.moving[side][flow] = None
                self.changed[side].append(time_s)

    def share(self, side: Side) -> None:
        """Share a side and all connected sides anew; lower rates delay messages in flight."""
        users = connected(side, self.moving)
        now_s = self.moment([time_s for each in users for time_s in self.changed.pop(each, ())], users)
        rates = fair_rates(users)
        for flow, rate in rates.items():
            if rate != flow.rate:
                flow.over_s = now_s + (flow.over_s - now_s) * (flow.rate / rate)
                flow.rate = rate
        self.look_later(rates)

    def look_later(self, flows: Collection[Flow]) -> None:
        """Look again when the first of these flows finishes a message; cancel earlier looks."""
        if flows:
            look = self.later(min((flow.over_s for flow in flows), key=self.key), self.look, flows)
        for flow in flows:
            if flow.look:
                flow.look.off = True
            flow.look = look

    def look(self, time_s: Number, flows: Collection[Flow]) -> None:
        """Complete messages that are due; each flow continues or leaves its ports."""
        last = self.key(time_s) * (1 + TIE)
        for flow in [flow for flow in flows if self.key(flow.over_s) <= last]:
            self.over(flow.over_s, flow, flow.queue.popleft())
            if flow.queue:
                self.go_on(flow, alone=len(flows) == 1)
            else:
                self.stop(flow)
        self.look_later([flow for flow in flows if flow.queue])

    def go_on(self, flow: Flow, *, alone: bool) -> None:
        """Move a flow's next message. A pause matters to other flows only if there are any."""
        message = flow.queue[0]
        moves_s = self.latest(message.moves_s, flow.over_s)
        self.moment([moves_s] if alone else [moves_s, flow.over_s], flow.sides)
        flow.over_s = moves_s + message.nbytes * flow.link.beta / flow.rate

    def stop(self, flow: Flow) -> None:
        self.moment([flow.over_s], flow.sides)
        for side in flow.sides:
            del self.moving[side][flow]
            if self.moving[side]:
                self.changed[side].append(flow.over_s)

    def over(self, time_s: Number, flow: Flow, message: Message) -> None:
        self.done(flow.source, time_s)
        rank = self.ranks[flow.target]
        if message.combine or flow.link.o:
            self.moment([time_s], [flow.target])
            sum_s = message.nbytes * self.network.gamma if message.combine else 0.0
            rank.busy_s = time_s = self.latest(rank.busy_s, time_s) + flow.link.o + sum_s
        self.done(flow.target, time_s)

    def done(self, index: int, time_s: Number) -> None:
        rank = self.ranks[index]
        rank.done_s = self.latest(rank.done_s, time_s)
        rank.left -= 1
        self.leave(index)

    def leave(self, index: int) -> None:
        if self.ranks[index].left == 0:
            self.later(self.ranks[index].done_s, self.enter, index)
