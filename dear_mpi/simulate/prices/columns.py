"""Replay programs for many sizes of the buffer at once: a number in ``cost`` is here a column of numbers.

``cost`` handles events in the order of their times, which depends on the size of the buffer. This replay takes the
order of one size, the leader's, does the arithmetic for all sizes, and finds out for which the order is the same:

    size 1 KB     a arrives, b arrives, c arrives        the leader
    size 2 KB     a arrives, b arrives, c arrives        the same order: its times are right
    size 1 MB     b arrives, a arrives, c arrives        another one: replayed again, with a leader of its own

Order matters where something waits for its turn: at ports, and at the processor of a rank that has several messages in
a step. Of two that come at the same time, the one that was started first is first;
where that is a tie too, so is what started them, and then a size is taken to be like the leader, if that has the ties.

Each number goes through the same operations as in ``cost``, so that times are the same bits. Time and memory: some 30
numpy calls for each message, on arrays of one row for each rank and one column for each size.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.program import Receive, Send
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.stand_ins import StandIns

__all__ = ["Columns", "seconds"]

Port = tuple[str, int]
Turn = tuple[str, Port]  # the "out" or "in" side of a port, or what a rank has "taken" in this step
Way = tuple[int, int]  # a lane: the rank that receives, and how far after it, around all ranks, the sender is


def seconds(ranks: StandIns, network: Network, counts: Array, itemsize: int) -> Array:
    """The time of these programs for buffers of so many elements, of so many bytes each.

    Args:
        counts: int64, shape (sizes,), each divisible by the number of ranks.

    Returns:
        float64, shape (sizes,): what ``cost`` says, in seconds.

    Raises:
        ProgramError: the programs deadlock (``verify`` says where).
    """
    times, todo = np.zeros(len(counts)), np.arange(len(counts))
    while todo.size:
        run = Columns(ranks, network, counts[todo], itemsize)
        run.to_the_end()
        times[todo[run.same]] = run.entered_s.max(axis=0)[run.same]
        todo = todo[~run.same]
    return times


@dataclass(frozen=True)
class Message:
    """One on its way: its bytes, and what it takes of a port.

    Attributes:
        when: its end is there; before that its sender began the step; before that something made it do so.
    """

    nbytes: Array
    port_s: Array
    when: tuple[Array, Array, Array]


class Columns:
    """One replay, of arrays with a row for each rank and a column for each size.

    Attributes:
        entered_s: when each rank began its current step; the names of ``cost``, as for done_s, busy_s and left.
        latest_s: when the last message for the step came: what makes the rank go on to the next one.
        crowded: whether receives of the step, from several ranks, wait for the processor in turn.
        latest: for each turn, who had it last, and when.
        same: of each column, whether its order of events is that of the leader.
    """

    def __init__(self, ranks: StandIns, network: Network, counts: Array, itemsize: int) -> None:
        self.programs, self.size, self.parts = ranks.programs, ranks.size, ranks.programs[0].parts
        self.network, self.shares, self.itemsize = network, counts // ranks.size, itemsize
        self.has_o = bool(network.o or (network.between and network.between.o))
        self.leader, self.same = len(counts) // 2, np.ones(len(counts), bool)
        self.entered_s, self.done_s, self.busy_s, self.latest_s = np.zeros((4, len(self.programs), len(counts)))
        self.number, self.left = [-1] * len(self.programs), [0] * len(self.programs)
        self.crowded = [False] * len(self.programs)
        self.lanes: dict[Way, Lane[tuple[Message, Array], bool]] = defaultdict(Lane)
        self.free_s: dict[Turn, Array] = defaultdict(lambda: np.zeros(len(counts)))
        self.latest: dict[Turn, tuple[object, tuple[Array, ...]]] = {}
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.numbers = itertools.count()
        self.durations = cache(self.new_durations)

    def later(self, times_s: Array, what: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self.events, (float(times_s[self.leader]), next(self.numbers), what, arguments))

    def to_the_end(self) -> None:
        for rank in range(len(self.programs)):
            self.enter(rank)
        while self.events:
            _, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        if any(number < len(program.steps) for number, program in zip(self.number, self.programs, strict=True)):
            raise ProgramError("the programs block each other for ever: verify() names the rank and the step")

    def enter(self, rank: int) -> None:
        """Begin the next step of a rank: all of its previous one is done."""
        self.number[rank] += 1
        self.entered_s[rank] = self.busy_s[rank] = self.done_s[rank]
        steps = self.programs[rank].steps
        if self.number[rank] == len(steps):
            return
        step = steps[self.number[rank]]
        if step.sends:
            self.send(rank, step.sends, (self.entered_s[rank].copy(), self.latest_s[rank].copy()))
        self.latest_s[rank] = self.entered_s[rank]
        self.post(rank, step.receives)
        self.leave(rank)

    def send(self, rank: int, sends: Sequence[Send], began: tuple[Array, Array]) -> None:
        """Put the messages of a step on the wire, one after the other."""
        for send in sends:
            link, port = self.network.link(rank, send.peer), self.network.port(rank, send.peer)
            nbytes, port_s = self.durations(send.chunks.start % self.parts, len(send.chunks), link)
            if link.o:
                self.busy_s[rank] += link.o
            self.in_turn(("out", port), rank, began)
            gone_s = self.occupy(("out", port), self.busy_s[rank], port_s)
            np.maximum(self.done_s[rank], gone_s, out=self.done_s[rank])
            there_s, to = gone_s + link.alpha, send.peer % len(self.programs)
            way = (to, (rank - send.peer) % self.size)
            self.later(there_s, self.arrive, way, Message(nbytes, port_s, (there_s, *began)))

    def post(self, rank: int, receives: Sequence[Receive]) -> None:
        """Begin the receives of a step, and give them what is already there."""
        ways = [(rank, (receive.peer - rank) % self.size) for receive in receives]
        for way, receive in zip(ways, receives, strict=True):
            self.lanes[way].receives.append(receive.combine)
        self.left[rank] = len(receives)
        self.crowded[rank] = len(set(ways)) > 1 and (self.has_o or any(receive.combine for receive in receives))
        self.latest.pop(("taken", ("rank", rank)), None)
        for way in ways:
            for message, _ in itertools.islice(self.lanes[way].sends, len(self.lanes[way].receives)):
                if self.crowded[rank]:
                    self.keep_order(message.when, (self.entered_s[rank],))
            self.take(way)

    def arrive(self, way: Way, message: Message) -> None:
        """The end of a message is there, unless the port was busy with another one meanwhile."""
        rank, lane = way[0], self.lanes[way]
        port, there_s = self.network.port(rank, sum(way) % self.size), message.when[0]
        self.in_turn(("in", port), way, message.when)
        taken_s = self.occupy(("in", port), there_s - message.port_s, message.port_s)
        lane.sends.append((message, np.maximum(there_s, taken_s)))
        if lane.receives:
            if self.crowded[rank]:
                self.keep_order((self.entered_s[rank],), message.when)
                self.in_turn(("taken", ("rank", rank)), port, message.when)
            self.take(way)
            self.leave(rank)

    def occupy(self, turn: Turn, times_s: Array, durations_s: Array) -> Array:
        """Use one side of a port as soon as it is free; return when that is over."""
        free_s = self.free_s[turn] = np.maximum(self.free_s[turn], times_s) + durations_s
        return free_s

    def take(self, way: Way) -> None:
        """Give what has arrived this way to the receives of the step."""
        rank, o = way[0], self.network.link(way[0], sum(way) % self.size).o
        for (message, times_s), combine in self.lanes[way].meetings():
            if combine or o:
                busy_s = np.maximum(self.busy_s[rank], times_s) + o
                self.busy_s[rank] = times_s = busy_s + message.nbytes * self.network.gamma if combine else busy_s
            np.maximum(self.done_s[rank], times_s, out=self.done_s[rank])
            np.maximum(self.latest_s[rank], message.when[0], out=self.latest_s[rank])
            self.left[rank] -= 1

    def leave(self, rank: int) -> None:
        """Go on to the next step when nothing of this one is left."""
        if self.left[rank] == 0 and self.number[rank] < len(self.programs[rank].steps):
            self.left[rank] = -1  # it leaves once
            self.later(self.done_s[rank], self.enter, rank)

    def in_turn(self, turn: Turn, who: object, when: tuple[Array, ...]) -> None:
        """Compare this turn with the one before, unless both are of one sender, whose messages have an order."""
        before = self.latest.get(turn)
        if before is not None and before[0] != who:
            self.keep_order(before[1], when)
        self.latest[turn] = (who, when)

    def keep_order(self, first: tuple[Array, ...], then: tuple[Array, ...]) -> None:
        """Keep the columns where the first of these two comes first; or where they tie, if the leader's tie too."""
        right, tied = np.zeros_like(self.same), np.ones_like(self.same)
        for one, other in zip(first, then, strict=False):
            right |= tied & (one < other)
            tied &= one == other
            if not tied[self.leader]:
                break
        else:
            right |= tied
        self.same &= right

    def new_durations(self, part: int, length: int, link: Network) -> tuple[Array, Array]:
        """The bytes of so many chunks from this part of a shard on, and their seconds at a port."""
        nbytes = self.itemsize * (self.border(part + length) - self.border(part))
        return nbytes, nbytes * link.beta

    def border(self, chunk: int) -> Array:
        """Elements before a chunk: those of whole shards, and of some of the parts that the next one is cut into."""
        (shards, part), (small, larger) = divmod(chunk, self.parts), divmod(self.shares, self.parts)
        before: Array = shards * self.shares + part * small + np.minimum(part, larger)
        return before
