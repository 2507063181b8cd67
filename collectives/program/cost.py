"""Predict what a program costs: replay it on a network of latency alpha, beta s/byte and gamma s/byte reduced.

The model. Every rank has a port, and every host one port to the network, each with two directions. A message of b bytes
occupies the outgoing side of its port for b beta, arrives alpha later, occupies the incoming side of the port there for
the same time, and takes b gamma more of the rank where it is combined. Messages inside a host use the ports of the
ranks. Messages between hosts use the ports of the hosts, which the ranks of a host share, with an alpha and beta of
their own. A message waits for a port that is busy: that is contention. A rank enters a step when all transfers of its
previous one are done. For the ring this gives the closed forms in ``algorithms/ring.py``; for the naive algorithm it
shows the crowd at rank 0. Segments, which let steps overlap, are not modelled.

Messages also take o seconds each of a rank's one processor, which does one thing after another. When a step begins it
hands the sends to the port, o for each; a message enters the port no earlier. Then it turns to the messages that have
arrived, o for each, and the sum right behind it. With o = 0 sends and plain receives do not need the processor. The
ranks of a host take turns at its port by steps: one that was first has it until its last send of the step is gone.

Source: alpha, beta and o are L, G and o of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995), whose g is 0
here; LogGOPSim replays programs of such messages in the same way (Hoefler, Schneider and Lumsdaine, LSAP 2010).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program

__all__ = ["Cost", "Network", "cost"]


@dataclass(frozen=True)
class Network:
    """What messages and sums cost: alpha in s per message, beta in s per byte, gamma in s per byte combined.

    And o in s of the processor per message, at each of its ends. Where ``hosts`` (the number of the host of each rank)
    are given, messages between hosts cost what ``between`` says; sums cost the same anywhere.
    """

    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    o: float = 0.0
    hosts: tuple[int, ...] | None = None
    between: Network | None = None

    def port(self, rank: int, peer: int) -> tuple[str, int]:
        """The port on the rank's side that a message to or from this peer uses."""
        if self.hosts is None or self.hosts[rank] == self.hosts[peer]:
            return "rank", rank
        return "host", self.hosts[rank]

    def link(self, rank: int, peer: int) -> Network:
        """What a message between two ranks costs."""
        return self if self.port(rank, peer)[0] == "rank" else self.between or self


@dataclass(frozen=True)
class Cost:
    """The time until the last rank is done, and what each rank, and each pair of ranks (from, to), has sent."""

    time_s: float
    messages: tuple[int, ...]
    nbytes: tuple[int, ...]
    link_messages: dict[tuple[int, int], int]
    link_nbytes: dict[tuple[int, int], int]


def cost(
    programs: Sequence[Program], count: int, itemsize: int, network: Network, partition: Partition | None = None
) -> Cost:
    """Price the programs of all ranks for a buffer of ``count`` elements, in equal shards unless told otherwise.

    Raises:
        ProgramError: the programs deadlock (``verify`` says where).

    >>> from dear_mpi.collectives.algorithms.registry import programs
    >>> cost(programs("ring", "all_reduce", 4), 1000, 4, Network(beta=1e-9)).nbytes
    (6000, 6000, 6000, 6000)
    """
    chunks = (partition or Partition.of(count, len(programs))).chunks(programs[0].parts)
    run = Simulation(programs, [border * itemsize for border in chunks], network)
    run.to_the_end()
    ranks = range(len(programs))
    return Cost(
        max(rank.entered_s for rank in run.ranks),
        tuple(sum(run.messages[rank, peer] for peer in ranks) for rank in ranks),
        tuple(sum(run.nbytes[rank, peer] for peer in ranks) for rank in ranks),
        dict(run.messages),
        dict(run.nbytes),
    )


@dataclass
class Rank:
    """Where one rank is."""

    program: Program
    number: int = -1
    entered_s: float = 0.0  # when its current step began
    done_s: float = 0.0  # when all transfers of the current step so far are over
    busy_s: float = 0.0  # until when its processor has work
    left: int = 0  # receives of the current step that are not over


class Simulation:
    """All ranks, events in the order of time: (seconds, number, what happens, its arguments)."""

    def __init__(self, programs: Sequence[Program], offsets: Sequence[int], network: Network) -> None:
        self.offsets, self.network = offsets, network
        self.ranks = [Rank(program) for program in programs]
        # By sender and receiver: what has arrived, when and how long; and whether a receive combines it.
        self.lanes: dict[tuple[int, int], Lane[tuple[float, int], bool]] = defaultdict(Lane)
        self.free_s: dict[tuple[str, tuple[str, int]], float] = defaultdict(float)  # by direction and port
        self.messages: Counter[tuple[int, int]] = Counter()
        self.nbytes: Counter[tuple[int, int]] = Counter()
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.numbers = itertools.count()

    def later(self, time_s: float, what: str, *arguments: int) -> None:
        heapq.heappush(self.events, (time_s, next(self.numbers), what, arguments))

    def to_the_end(self) -> None:
        for rank in range(len(self.ranks)):
            self.enter(0.0, rank)
        while self.events:
            time_s, _, what, arguments = heapq.heappop(self.events)
            getattr(self, what)(time_s, *arguments)
        if any(rank.number < len(rank.program.steps) for rank in self.ranks):
            raise ProgramError("the programs block each other for ever: verify() names the rank and the step")

    def enter(self, time_s: float, index: int) -> None:
        """Begin the next step of a rank: put its messages on the wire, one after the other."""
        rank = self.ranks[index]
        rank.number, rank.entered_s, rank.done_s, rank.busy_s = rank.number + 1, time_s, time_s, time_s
        if rank.number == len(rank.program.steps):
            return
        step = rank.program.steps[rank.number]
        rank.left = len(step.receives)
        for send in step.sends:
            nbytes = self.offsets[send.chunks.stop] - self.offsets[send.chunks.start]
            link = self.network.link(index, send.peer)
            rank.busy_s += link.o
            gone_s = self.occupy("out", self.network.port(index, send.peer), rank.busy_s, nbytes * link.beta)
            rank.done_s = max(rank.done_s, gone_s)
            self.messages[index, send.peer] += 1
            self.nbytes[index, send.peer] += nbytes
            self.later(gone_s + link.alpha, "arrive", index, send.peer, nbytes)
        for receive in step.receives:
            self.lanes[receive.peer, index].receives.append(receive.combine)
        for receive in step.receives:
            self.take(index, receive.peer)
        self.leave(index)

    def occupy(self, direction: str, port: tuple[str, int], time_s: float, duration_s: float) -> float:
        """Use one side of a port as soon as it is free; return the time at which that is over."""
        self.free_s[direction, port] = max(self.free_s[direction, port], time_s) + duration_s
        return self.free_s[direction, port]

    def arrive(self, time_s: float, source: int, index: int, nbytes: int) -> None:
        """The end of a message is there, unless the port was busy with another one meanwhile."""
        duration_s = nbytes * self.network.link(source, index).beta
        taken_s = self.occupy("in", self.network.port(index, source), time_s - duration_s, duration_s)
        self.lanes[source, index].sends.append((max(time_s, taken_s), nbytes))
        if self.take(index, source):
            self.leave(index)

    def take(self, index: int, source: int) -> bool:
        """Give what has arrived from a rank to the receives of the step; return whether there was any."""
        rank, before, o = self.ranks[index], self.ranks[index].left, self.network.link(source, index).o
        for (time_s, nbytes), combine in self.lanes[source, index].meetings():
            if combine or o:
                rank.busy_s = max(rank.busy_s, time_s) + o + (nbytes * self.network.gamma if combine else 0.0)
                time_s = rank.busy_s
            rank.done_s = max(rank.done_s, time_s)
            rank.left -= 1
        return rank.left < before

    def leave(self, index: int) -> None:
        """Go on to the next step when nothing of this one is left."""
        rank = self.ranks[index]
        if rank.left == 0 and rank.number < len(rank.program.steps):
            rank.left = -1  # it leaves once
            self.later(rank.done_s, "enter", index)
