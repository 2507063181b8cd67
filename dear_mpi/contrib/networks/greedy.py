"""Search an all-gather step by step: each link takes the rarest chunk that its receiver lacks.

A link of c units takes c chunks in a step. Links with few chunks to choose from come first, others by chance; so
several seeds are tried. This is enough without ports. With ports, a step can leave one unused:

    0 --> 2     Ranks 0 and 1 send one chunk each. Rank 2 took its chunk from 0, and 3 can have one only from 0.
    0 --> 3     So 2 takes one from 1 instead, if there is one (an augmenting path, as in bipartite matching), and 0
    1 --> 2     sends to 3.

A chunk enters a port of several ranks once, if they have links among themselves: further copies go over what is left.

With ``whole``, links differ in time instead: a link of c units sends one chunk after the other, each in L / c ticks,
for L the least common multiple of all units. TACOS schedules so.

Source: Won et al., TACOS: topology-aware collective algorithm synthesizer (2024), arXiv 2304.05301.
"""

import heapq
import math
import random
from dataclasses import dataclass
from typing import NamedTuple

from dear_mpi.contrib.networks.graph import Graph

SEEDS = 20
MOST_TRIED = 300_000  # of all seeds: a second or two


class Move(NamedTuple):
    """A chunk sent in a step, or from a tick on."""

    step: int
    source: int
    dest: int
    chunk: int


@dataclass(frozen=True)
class Schedule:
    """``parts``: chunks per rank; rank r owns those from ``r * parts`` on."""

    parts: int
    steps: int
    moves: tuple[Move, ...]


def search(graph: Graph, parts: int, least: int, seeds: int = SEEDS, *, whole: bool = False) -> Schedule:
    """Return the shortest schedule of some seeds, fewer on large networks; stop at ``least`` steps.

    ``graph``: rates in whole units. With ``whole``, steps are ticks.

    >>> from dear_mpi.contrib.networks.graph import read_graph
    >>> from dear_mpi.contrib.networks.bound import in_units
    >>> search(in_units(read_graph("torus:4"))[0], parts=2, least=3).steps
    3
    """
    tries = max(1, min(seeds, MOST_TRIED // (graph.size**2 * parts + least * len(graph.links))))
    best = None
    for seed in range(tries):
        found = Search(graph, parts, seed, whole=whole).run(best.steps if best else None)
        best = found or best
        if best is not None and best.steps <= least:
            break
    assert best is not None, "a search without a limit ends"
    return best


class Search:
    """One seed's state: chunks are bits of an int."""

    def __init__(self, graph: Graph, parts: int, seed: int, *, whole: bool = False) -> None:
        self.graph, self.parts, self.random = graph, parts, random.Random(seed)
        counts = {pair: int(units) for pair, units in graph.links.items()}
        cycle = math.lcm(*counts.values()) if whole else 1
        self.ticks = {pair: cycle // count if whole else 1 for pair, count in counts.items()}
        self.used = counts if whole else dict.fromkeys(counts, 1)  # of ports, by a chunk
        self.lanes = dict.fromkeys(counts, 1) if whole else counts  # that are free now
        self.room = [int(units) for port in graph.ports for units in (port.out, port.into)]
        self.ports = {
            pair: [2 * n for n in outs] + [2 * n + 1 for n in ins] for pair, (outs, ins) in graph.passed.items()
        }
        self.sources: list[list[int]] = [[] for _ in range(graph.size)]
        for source, dest in graph.links:
            self.sources[dest].append(source)
        self.shared = [number for number, port in enumerate(graph.ports) if len(port.ranks) > 1]
        self.all = (1 << graph.size * parts) - 1
        self.held = [((1 << parts) - 1) << rank * parts for rank in range(graph.size)]
        self.coming = [0] * graph.size
        self.copies = [0, self.all, *[0] * graph.size]  # chunks by the number of ranks that have them, or soon will
        self.now: dict[Move, None] = {}  # begun in this step
        self.under_way: list[tuple[int, Move]] = []

    def run(self, limit: int | None) -> Schedule | None:
        """Return None if it takes ``limit`` steps or more."""
        moves, step = list[Move](), 0
        while True:
            self.begin(step)
            for move in self.now:
                heapq.heappush(self.under_way, (step + self.ticks[move.source, move.dest], move))
            moves += self.now
            self.now = {}
            if not self.under_way:
                break
            step = self.under_way[0][0]
            if limit is not None and step >= limit:
                return None
            while self.under_way and self.under_way[0][0] == step:
                self.arrive(heapq.heappop(self.under_way)[1])
        assert all(held == self.all for held in self.held), "each rank can be reached"
        return Schedule(self.parts, step, tuple(moves))

    def begin(self, step: int) -> None:
        pairs = [pair for pair, lanes in self.lanes.items() for _ in range(lanes) if self.wanted(*pair)]
        self.random.shuffle(pairs)
        pairs.sort(key=lambda pair: self.wanted(*pair).bit_count())
        inside = {number: self.inside(number) for number in self.shared}
        for source, dest in pairs:
            ports = [number for number in self.graph.passed[source, dest][1] if number in inside]
            wanted = self.wanted(source, dest)
            for number in ports:
                wanted &= ~inside[number]
            if wanted and not self.full(source, dest):
                move = self.send(step, source, dest, wanted)
                for number in ports:
                    inside[number] |= 1 << move.chunk
        if self.room:
            lacking = [rank for rank in range(self.graph.size) if self.held[rank] | self.coming[rank] != self.all]
            self.random.shuffle(lacking)
            for dest in lacking:
                while self.fill(step, dest, set()):
                    pass

    def wanted(self, source: int, dest: int) -> int:
        return self.held[source] & ~(self.held[dest] | self.coming[dest])

    def inside(self, port: int) -> int:
        """Return the chunks that ranks of a port have, or soon will."""
        found = 0
        for rank in self.graph.ports[port].ranks:
            found |= self.held[rank] | self.coming[rank]
        return found

    def full(self, source: int, dest: int) -> list[int]:
        """Return the ports without room for another chunk."""
        need = self.used[source, dest]
        return [port for port in self.ports[source, dest] if self.room[port] < need]

    def send(self, step: int, source: int, dest: int, wanted: int) -> Move:
        rarest = next(found for chunks in self.copies if (found := wanted & chunks))
        after = rarest >> (start := self.random.randrange(self.graph.size * self.parts)) << start
        bit = (after or rarest) & -(after or rarest)
        move = Move(step, source, dest, bit.bit_length() - 1)
        self.turn(move, 1)
        return move

    def turn(self, move: Move, by: int) -> None:
        """Begin a move (``by`` 1), or take it back (-1)."""
        if by > 0:
            self.now[move] = None
        else:
            del self.now[move]
        pair, bit = (move.source, move.dest), 1 << move.chunk
        copies = next(number for number, chunks in enumerate(self.copies) if chunks & bit)
        self.coming[move.dest] ^= bit
        self.copies[copies] ^= bit
        self.copies[copies + by] ^= bit
        self.lanes[pair] -= by
        for port in self.ports[pair]:
            self.room[port] -= by * self.used[pair]

    def fill(self, step: int, dest: int, seen: set[int]) -> bool:
        """Begin one more move to a rank; those that fill a port for it are sent by others."""
        blocked = list[tuple[int, int]]()
        for source in self.sources[dest]:
            if self.lanes[source, dest] and (wanted := self.wanted(source, dest)):
                full = self.full(source, dest)
                if not full:
                    self.send(step, source, dest, wanted)
                    return True
                if len(full) == 1 and full[0] % 2 == 0:  # a port out: a port in is filled by others that need it
                    blocked.append((source, full[0]))
        for source, port in blocked:
            if port in seen:
                continue
            seen.add(port)
            for other in [move for move in self.now if port in self.ports[move.source, move.dest]]:
                self.turn(other, -1)
                if (wanted := self.wanted(source, dest)) and not self.full(source, dest):
                    mine = self.send(step, source, dest, wanted)
                    if self.fill(step, other.dest, seen):
                        return True
                    self.turn(mine, -1)
                self.turn(other, 1)
        return False

    def arrive(self, move: Move) -> None:
        pair, bit = (move.source, move.dest), 1 << move.chunk
        self.held[move.dest] |= bit
        self.coming[move.dest] ^= bit
        self.lanes[pair] += 1
        for port in self.ports[pair]:
            self.room[port] += self.used[pair]
