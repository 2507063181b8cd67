"""Predict a program's time on a network, event by event: latency alpha, beta s/byte, gamma s/byte reduced.

Each rank has a port, and each host one to the network, shared by its ranks, with its own alpha and beta. All transfers
of a step from one rank to another are one message. It begins when both ends are in their step (rendezvous). After alpha
its b bytes take b beta, or longer if messages share a side of a port (see below). Combining takes b gamma on the
receiver, also of what the rank itself holds in scratch; copies are free. A rank enters a step when its previous one is
complete. For the ring this gives the closed forms of ``algorithms/ring.py``. The model omits segments and eager
sending.

Each message also takes o seconds of the processor at both ends. At the start of a step a rank hands over its sends, o
each, before their messages begin. Then it handles arrivals: o each, and the sum.

A flow is the message from one rank to another. When it starts or stops, connected flows get new rates, until one
finishes.

Source: alpha, beta and o are L, G and o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995), with g = 0.
Messages begin, share and end as in SimGrid (decision 0013).

Ports are shared fairly among flows (max-min fairness):

    a to x      2/3     what the next flow leaves of a; a third of x stays free
    a to y      1/3
    b to y      1/3     three flows go into y, and each has a third of it
    c to y      1/3

A flow uses its sender's outgoing and its receiver's incoming side of a port; on a network with a shape, a side of every
link on its way. Flows share a side evenly, and take what limited flows leave. Twice the links mean twice the latency
and half the share, as under TCP.

Source: Bertsekas and Gallager, Data Networks (1992), section 6.5 (progressive filling).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Lane, Rates, rates_of
from dear_mpi.collectives.program.program import Partition, Program, Receive, Send, by_peer

TIE = 1e-10  # equal within rounding

Side: TypeAlias = tuple[Hashable, ...]  # side of a port, or direction of a link
Way: TypeAlias = tuple[Side, ...]


@dataclass(frozen=True)
class Network:
    """Costs of messages and sums; derive networks with a shape."""

    # If only ports are shared, all hosts look the same.
    ports: ClassVar[bool] = True
    alpha: float = 0.0  # s/message
    beta: float = 0.0  # s/byte
    gamma: float = 0.0  # s/byte combined
    o: float = 0.0  # s of the processor per message, at each end
    hosts: tuple[int, ...] | None = None
    between: Network | None = None

    def distance(self, rank: int, peer: int) -> int:
        """Return 0 inside a host, 1 between hosts."""
        return int(self.hosts is not None and self.hosts[rank] != self.hosts[peer])

    def neighbourhoods(self, ranks: int) -> tuple[int, ...] | None:
        """Return each rank's host, for algorithms."""
        return self.hosts

    @property
    def rates(self) -> Rates | None:
        if self.hosts is None or self.between is None:
            return None
        inside, port = (1 / each.beta if each.beta else math.inf for each in (self, self.between))
        return rates_of(inside, port, self.hosts)

    def link(self, distance: int) -> Network:
        return self.between or self if distance else self

    def port(self, rank: int, peer: int) -> tuple[str, int]:
        return ("host", self.hosts[rank]) if self.hosts and self.distance(rank, peer) else ("rank", rank)

    def way_out(self, rank: int, peer: int) -> Way:
        return (("out", self.port(rank, peer)),)

    def way_in(self, rank: int, peer: int) -> Way:
        return (("in", self.port(rank, peer)),)

    def capacity(self, side: Side) -> float:
        """Return a side's rate relative to 1/beta."""
        return 1.0


def connected(side: Side, moving: Mapping[Side, Collection[Flow]]) -> dict[Side, Collection[Flow]]:
    found, waiting = {side: moving[side]}, [side]
    while waiting:
        for flow in found[waiting.pop()]:
            for each in flow.sides:
                if each not in found:
                    found[each] = moving[each]
                    waiting.append(each)
    return found


def fair_rates(
    users: Mapping[Side, Collection[Flow]], capacity: Callable[[Side], float] = Network().capacity
) -> dict[Flow, float]:
    """Return each flow's rate, fixed from the tightest side on."""
    rates, free = dict[Flow, float](), {side: capacity(side) for side in users}
    waiting = {side: len(flows) for side, flows in users.items() if flows}
    weights = {side: sum([1 / len(flow.sides) for flow in users[side]]) for side in waiting}
    while waiting:
        parts = {side: free[side] / weights[side] for side in waiting}
        least = min(parts.values())
        tight = [side for side, part in parts.items() if part <= least * (1 + TIE)]
        for flow in (flow for side in tight for flow in users[side] if flow not in rates):
            weight = 1 / len(flow.sides)
            rates[flow] = rate = least * weight
            for side in flow.sides:
                free[side] -= rate
                weights[side] -= weight
                waiting[side] -= 1
        waiting = {side: count for side, count in waiting.items() if count}
    return rates


@dataclass(frozen=True)
class Cost:
    """``done_s``: each rank's end; ``link_nbytes``: bytes by (from, to)."""

    time_s: float
    messages: tuple[int, ...]
    nbytes: tuple[int, ...]
    link_nbytes: dict[tuple[int, int], int]
    done_s: tuple[float, ...]


def cost(
    programs: Sequence[Program],
    count: int,
    itemsize: int,
    network: Network,
    partition: Partition | None = None,
    *,
    arrivals_s: Sequence[float] = (),
) -> Cost:
    """Price the programs of all ranks for a buffer of ``count`` elements.

    ``arrivals_s``: when each rank enters; default 0. ProgramError: deadlock.

    >>> from dear_mpi.collectives.algorithms.registry import programs
    >>> cost(programs("ring", "all_reduce", 4), 1000, 4, Network(beta=1e-9)).nbytes
    (6000, 6000, 6000, 6000)
    """
    borders = (partition or Partition.of(count, len(programs))).chunks(programs[0].parts)

    def nbytes_of(chunks: range) -> int:
        first = chunks.start % programs[0].chunks  # of the same chunks in the buffer
        return itemsize * (borders[first + len(chunks)] - borders[first])

    run = Simulation(programs, nbytes_of, network)
    run.to_the_end(arrivals_s)
    messages, nbytes, link_nbytes = [0] * len(programs), [0] * len(programs), Counter[tuple[int, int]]()
    for rank, program in enumerate(programs):
        for peer, sends in (each for step in program.steps for each in by_peer(step.sends).items() if each[0] != rank):
            sent = run.total(sends)
            messages[rank] += 1
            nbytes[rank] += sent
            link_nbytes[rank, peer] += sent
    done_s = tuple(rank.entered_s for rank in run.ranks)
    return Cost(run.time_s, tuple(messages), tuple(nbytes), dict(link_nbytes), done_s)


@dataclass
class Progress:
    program: Program
    number: int = -1
    entered_s: float = 0.0
    done_s: float = 0.0  # end of its last completed message
    busy_s: float = 0.0  # end of its processor's work
    left: int = 0


@dataclass(eq=False, slots=True)
class Due:
    """An event; ``off``: cancelled."""

    time_s: float
    what: Callable[..., None]
    arguments: tuple[object, ...]
    off: bool = False


class Message(NamedTuple):
    """Posted at both ends."""

    moves_s: float
    nbytes: int
    combined: int  # bytes of them


NOTHING = Message(0.0, 0, 0)


@dataclass(eq=False, slots=True)
class Flow:
    source: int
    target: int
    sides: Way
    link: Network
    # Sends (ready time, bytes) and receives (ready time, bytes to combine).
    posted: Lane[tuple[float, int], tuple[float, int]] = field(default_factory=Lane)
    message: Message = NOTHING
    rate: float = 1.0  # share of its sides
    over_s: float = 0.0  # end of the message at this rate
    look: Due | None = None  # next look at this flow and at connected flows


class Simulation:
    """Ranks, flows and events in order of time.

    Args:
        programs: of the first of ``size`` ranks, which others repeat with peers shifted; default: of all.
        nbytes: returns the bytes of chunks.
    """

    def __init__(
        self, programs: Sequence[Program], nbytes: Callable[[range], int], network: Network, size: int | None = None
    ) -> None:
        self.nbytes, self.network, self.size = nbytes, network, size or len(programs)
        self.ranks = [Progress(program) for program in programs]
        self.flows: dict[tuple[int, int], Flow] = {}
        self.moving: dict[Side, dict[Flow, None]] = defaultdict(dict)
        self.changed: dict[Side, list[float]] = defaultdict(list)
        self.events: list[tuple[float, int, Due]] = []
        self.numbers = itertools.count()

    @property
    def time_s(self) -> float:
        return max(rank.entered_s for rank in self.ranks)

    def seen_by(self, rank: int, peer: int) -> tuple[int, int]:
        """Return the identical pair whose first rank has a program here."""
        first = rank % len(self.ranks)
        return first, (peer - rank + first) % self.size

    def later(self, time_s: float, what: Callable[..., None], *arguments: object) -> Due:
        event = Due(time_s, what, arguments)
        heapq.heappush(self.events, (time_s, next(self.numbers), event))
        return event

    def to_the_end(self, arrivals_s: Sequence[float] = ()) -> None:
        for rank, arrival_s in enumerate(arrivals_s or [0.0] * len(self.ranks)):
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

    def enter(self, time_s: float, index: int) -> None:
        rank = self.ranks[index]
        rank.number += 1
        rank.entered_s = rank.done_s = rank.busy_s = time_s
        if rank.number == len(rank.program.steps):
            return
        step = rank.program.steps[rank.number]
        sends, receives = by_peer(step.sends), by_peer(step.receives)
        sends.pop(index, None)
        own = receives.pop(index, ())  # sums without messages
        rank.left = len(sends) + len(receives)
        outgoing = {self.flow(*self.seen_by(peer, index)): group for peer, group in sends.items()}
        incoming = {self.flow(index, peer): group for peer, group in receives.items()}
        for flow, group in outgoing.items():
            rank.busy_s += flow.link.o
            flow.posted.sends.append((rank.busy_s, self.total(group)))
        for flow, arriving in incoming.items():
            flow.posted.receives.append((time_s, self.combined(arriving)))
        if own:
            rank.done_s = rank.busy_s = rank.busy_s + self.combined(own) * self.network.gamma
        for flow in dict.fromkeys([*outgoing, *incoming]):
            for (handed_s, nbytes), (posted_s, combined) in flow.posted.meetings():
                moves_s = max(handed_s, posted_s) + flow.link.alpha
                self.later(moves_s, self.move, flow, Message(moves_s, nbytes, combined))
        self.leave(index)

    def total(self, transfers: Iterable[Send | Receive]) -> int:
        return sum([self.nbytes(transfer.chunks) for transfer in transfers])

    def combined(self, receives: Iterable[Receive]) -> int:
        return self.total(receive for receive in receives if receive.combine)

    def flow(self, index: int, peer: int) -> Flow:
        if (index, peer) not in self.flows:
            source, target = self.seen_by(peer, index)
            sides = (*self.network.way_out(source, target), *self.network.way_in(index, peer))
            link = self.network.link(self.network.distance(index, peer))
            self.flows[index, peer] = Flow(source, index, sides, link)
        return self.flows[index, peer]

    def move(self, time_s: float, flow: Flow, message: Message) -> None:
        flow.message, flow.rate, flow.over_s = message, 1.0, time_s + message.nbytes * flow.link.beta
        for side in flow.sides:
            self.moving[side][flow] = None
            self.changed[side].append(time_s)

    def share(self, side: Side) -> None:
        users = connected(side, self.moving)
        now_s = max(time_s for each in users for time_s in self.changed.pop(each, ()))
        rates = fair_rates(users, self.network.capacity)
        for flow, rate in rates.items():
            if rate != flow.rate:
                flow.over_s = now_s + (flow.over_s - now_s) * (flow.rate / rate)
                flow.rate = rate
        self.look_later(rates)

    def look_later(self, flows: Collection[Flow]) -> None:
        if flows:
            look = self.later(min(flow.over_s for flow in flows), self.look, flows)
        for flow in flows:
            if flow.look:
                flow.look.off = True
            flow.look = look

    def look(self, time_s: float, flows: Collection[Flow]) -> None:
        last_s = time_s * (1 + TIE)
        for flow in [flow for flow in flows if flow.over_s <= last_s]:
            self.over(flow.over_s, flow, flow.message)
            for side in flow.sides:
                del self.moving[side][flow]
                if self.moving[side]:
                    self.changed[side].append(flow.over_s)
        self.look_later([flow for flow in flows if flow.over_s > last_s])

    def over(self, time_s: float, flow: Flow, message: Message) -> None:
        self.done(flow.source, time_s)
        rank = self.ranks[flow.target]
        if message.combined or flow.link.o:
            sum_s = message.combined * self.network.gamma
            rank.busy_s = time_s = max(rank.busy_s, time_s) + flow.link.o + sum_s
        self.done(flow.target, time_s)

    def done(self, index: int, time_s: float) -> None:
        rank = self.ranks[index]
        rank.done_s = max(rank.done_s, time_s)
        rank.left -= 1
        self.leave(index)

    def leave(self, index: int) -> None:
        if self.ranks[index].left == 0:
            self.later(self.ranks[index].done_s, self.enter, index)
