"""Find the least time of an all-gather: the cut that lets its ranks' data out most slowly.

Each rank owns one unit of data. Ranks in a set S own |S| units, and a rank outside needs them all. So the all-gather
takes at least |S| / (units/s that leave S), for each S that is not all ranks:

    0 === 1
    |     |         {0, 1, 2, 3} owns 4 units, and one link leaves it: 4 receives them in 4 steps.
    2 === 3 --- 4

Without ports, this time is reached with enough chunks (Edmonds 1973). A maximum flow, from all ranks, one unit each, to
a rank outside, finds the worst cut: each flow that fails shows a worse one (Dinkelbach 1967).

A port is an edge through which its ranks' messages pass. For a port of several ranks, their links are pooled: the bound
is still below every all-gather, but may be lower than need be. With few ranks all sets are tried, each exactly. Ports
can make another bound higher: each rank receives all other units, and what arrives at a set of ranks has left a port.

Source: Zhao et al., ForestColl (2024), arXiv 2402.06787; Dinic (1970).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, compress, dropwhile, pairwise

from dear_mpi.contrib.networks.graph import Graph, Port, distances

MOST_SETS = 10  # ranks whose sets are all tried
MOST_ROOTS = 64  # ranks outside that are tried
MOST_UNITS = 8  # of a link
TOLERANCE = 0.1  # of a unit: of measured rates
WORTH = 0.02  # share of the rates for which smaller units are taken

Edges = dict[tuple[int, int], Fraction]


@dataclass(frozen=True)
class Cut:
    """``rate``: of units that leave these ranks, or, with ``need``, of those that arrive there, per second or step."""

    ranks: tuple[int, ...]
    rate: Fraction
    need: int | None = None  # units that must arrive

    @property
    def units(self) -> int:
        return len(self.ranks) if self.need is None else self.need

    @property
    def time(self) -> Fraction:
        return self.units / self.rate


class Flow:
    """Maximum flows on one network, with capacities that change."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int]]) -> None:
        self.ends = [node for source, dest in edges for node in (dest, source)]  # edge 2k+1 is edge 2k backwards
        self.at: list[list[int]] = [[] for _ in range(nodes)]
        for number in range(len(self.ends)):
            self.at[self.ends[number ^ 1]].append(number)

    def most(self, capacities: Iterable[int], source: int, sink: int) -> tuple[int, list[int]]:
        """Return the maximum flow, and each node's level: -1 on the sink's side of the least cut."""
        room, total = [each for capacity in capacities for each in (capacity, 0)], 0
        while (levels := self.levels(room, source))[sink] >= 0:
            nexts = [0] * len(self.at)
            while path := self.path(room, levels, nexts, source, sink):
                pushed = min(room[edge] for edge in path)
                total += pushed
                for edge in path:
                    room[edge] -= pushed
                    room[edge ^ 1] += pushed
        return total, levels

    def levels(self, room: Sequence[int], source: int) -> list[int]:
        found, waiting = [-1] * len(self.at), [source]
        found[source] = 0
        for node in waiting:
            for edge in self.at[node]:
                end = self.ends[edge]
                if room[edge] and found[end] < 0:
                    found[end] = found[node] + 1
                    waiting.append(end)
        return found

    def path(self, room: Sequence[int], levels: Sequence[int], nexts: list[int], *ends: int) -> list[int]:
        """Return edges with room, each to the next level; none of those before ``nexts`` leads on."""
        node, sink = ends
        path = list[int]()
        while node != sink:
            edges = self.at[node]
            for place in range(nexts[node], len(edges)):
                edge = edges[place]
                if room[edge] and levels[self.ends[edge]] == levels[node] + 1:
                    nexts[node] = place
                    path.append(edge)
                    node = self.ends[edge]
                    break
            else:
                nexts[node] = len(edges)
                if not path:
                    return []
                node = self.ends[path.pop() ^ 1]
                nexts[node] += 1
        return path


def edges_of(graph: Graph, ends: Callable[[int, int], tuple[int, int] | None] = lambda *pair: pair) -> Edges:
    """Return capacities between nodes: ranks, then both ends of each port, outwards and inwards.

    ``ends``: returns the nodes at the ends of a link; without it, they are the ranks. None: leave it out.
    """
    found, size = defaultdict[tuple[int, int], Fraction](Fraction), graph.size
    for (source, dest), (outs, ins) in graph.passed.items():
        if (both := ends(source, dest)) is None:
            continue
        nodes = [both[0]]
        for way, numbers in ((0, outs), (2, ins)):
            for number in numbers:
                first = size + 4 * number + way
                nodes += (first, first + 1)
                port = graph.ports[number]
                found[first, first + 1] = Fraction(port.into if way else port.out)
        for one, other in list(pairwise([*nodes, both[1]]))[::2]:
            found[one, other] += Fraction(graph.links[source, dest])
    return found


def leaving(graph: Graph, ranks: Iterable[int]) -> Fraction:
    """Return the units per second that can leave these ranks."""
    inside = frozenset(ranks)
    edges = edges_of(graph, lambda source, dest: (0, 1) if source in inside and dest not in inside else None)
    whole, scale = scaled(edges)
    return Fraction(Flow(nodes_of(graph), edges).most(whole, 0, 1)[0], scale)


def scaled(edges: Edges) -> tuple[list[int], int]:
    """Return capacities as whole numbers, and the factor that makes them so."""
    scale = math.lcm(*(capacity.denominator for capacity in edges.values()))
    return [int(capacity * scale) for capacity in edges.values()], scale


def nodes_of(graph: Graph) -> int:
    return max(2, graph.size) + 4 * len(graph.ports)


def cut_bound(graph: Graph) -> Cut:
    """Return the worst cut that was found: no all-gather is faster than its ``time``.

    >>> from dear_mpi.contrib.networks.graph import read_graph
    >>> cut_bound(in_units(read_graph("mesh:3x3"))[0]).time  # 8 units into a corner, by two links
    Fraction(4, 1)
    """
    if graph.size == 1:
        return Cut((0,), Fraction(1 << 62))
    pooled = any(len(port.ranks) > 1 for port in graph.ports)
    if pooled and graph.size <= MOST_SETS:
        sets = (ranks for count in range(1, graph.size) for ranks in combinations(range(graph.size), count))
        worst = max((Cut(ranks, leaving(graph, ranks)) for ranks in sets), key=lambda cut: cut.time)
    else:
        worst = by_flows(graph)
    return by_arrivals(graph, worst)


def least_steps(graph: Graph, parts: int, worst: Cut) -> int:
    """Return steps that an all-gather of ``parts`` chunks per rank needs: by cuts, and by the longest path.

    A chunk that leaves a cut in the last step must reach all ranks outside in it.
    """
    if graph.size == 1:
        return 0
    found = max(max(distances(graph, rank)) for rank in range(graph.size)) if graph.size <= MOST_ROOTS else 1
    sets = [port.ranks for port in graph.ports if 1 < len(port.ranks) < graph.size]
    sets += [tuple(sorted({*range(graph.size)} - {*ranks})) for ranks in sets]
    for cut in [worst, *(Cut(ranks, leaving(graph, ranks)) for ranks in sets)]:
        last = cut.rate // (graph.size - len(cut.ranks)) if cut.need is None else cut.rate
        found = max(found, 1 + math.ceil((cut.units * parts - last) / cut.rate))
    return found


def by_flows(graph: Graph) -> Cut:
    ranks, source, edges = range(graph.size), nodes_of(graph), edges_of(graph)
    flow = Flow(source + 1, [*edges, *((source, rank) for rank in ranks)])
    worst = Cut(tuple(ranks[1:]), leaving(graph, ranks[1:]))
    for root in ranks[:: -(-graph.size // MOST_ROOTS)]:
        while narrow := too_narrow(flow, edges, worst.time, 1, (source, root)):
            levels, rate = narrow
            worst = Cut(tuple(rank for rank in ranks if levels[rank] >= 0), rate)
    return worst


def by_arrivals(graph: Graph, worst: Cut) -> Cut:
    """Return the ranks at which all units arrive later than the worst cut allows, or this cut."""
    ranks, first, others = range(graph.size), nodes_of(graph), graph.size - 1  # receivers are further nodes
    edges, sink = edges_of(graph, lambda source, dest: (0, first + dest)), first + graph.size
    flow = Flow(sink + 1, [*edges, *((first + rank, sink) for rank in ranks)])
    while narrow := too_narrow(flow, edges, worst.time, others, (0, sink)):
        levels, rate = narrow
        late = tuple(rank for rank in ranks if levels[first + rank] < 0)
        worst = Cut(late, rate, others * len(late))
    return worst


def too_narrow(
    flow: Flow, edges: Edges, time: Fraction, units: int, ends: tuple[int, int]
) -> tuple[list[int], Fraction] | None:
    """Return nodes' levels and the capacity of a cut that is too narrow for the units in this time, or None.

    ``units``: of each of the flow's edges after ``edges``.
    """
    whole, scale = scaled(edges)
    due = [units * time.denominator * scale] * (len(flow.ends) // 2 - len(edges))
    total, levels = flow.most([*(capacity * time.numerator for capacity in whole), *due], *ends)
    across = (levels[one] >= 0 > levels[other] for one, other in edges)
    return None if total == sum(due) else (levels, Fraction(sum(compress(whole, across)), scale))


def in_units(graph: Graph) -> tuple[Graph, float]:
    """Return the network with rates in whole units, at most ``MOST_UNITS`` for a link, and the bytes/s of a unit.

    A link that is much slower than a unit is left out. If a rate is rounded up, the unit is smaller instead. The units
    that keep most of all rates are chosen, large ones first.

    >>> graph = Graph(3, {(0, 1): 99.0, (1, 0): 103.0, (1, 2): 50.0, (2, 0): 51.0})
    >>> in_units(graph)[0].links, in_units(graph)[1]
    ({(0, 1): 2, (1, 0): 2, (1, 2): 1, (2, 0): 1}, 49.5)
    """
    ports, usable = [rate for port in graph.ports for rate in (port.out, port.into)], dict[tuple[int, int], float]()
    for pair, (outs, ins) in graph.passed.items():
        limits = [graph.ports[number].out for number in outs] + [graph.ports[number].into for number in ins]
        usable[pair] = min([graph.links[pair], *limits])

    def rounded(unit: float) -> Graph:
        counts = {pair: min(MOST_UNITS, count_of(rate, unit)) for pair, rate in usable.items() if count_of(rate, unit)}
        whole = tuple(Port(port.ranks, count_of(port.out, unit), count_of(port.into, unit)) for port in graph.ports)
        return replace(graph, links=counts, ports=whole)

    def too_large(unit: float) -> bool:
        return not all(count_of(rate, unit) for rate in ports) or rounded(unit).unreachable() is not None

    sizes = {rate / parts for rate in distinct([*usable.values(), *ports]) for parts in range(1, MOST_UNITS + 1)}
    kept = dict[float, tuple[float, float]]()  # of all rates, and the real unit
    for unit in dropwhile(too_large, sorted(sizes, reverse=True)):
        counted = [(rate, min(MOST_UNITS, count_of(rate, unit))) for rate in usable.values()]
        counted += [(rate, count_of(rate, unit)) for rate in ports]
        real = min([unit, *(rate / count for rate, count in counted if count)])
        kept[unit] = real * sum(count for _, count in counted), real
    if not kept:
        return graph, 1.0  # of one rank
    enough = max(kept.values())[0] - WORTH * (sum(usable.values()) + sum(ports))
    unit, real = next((unit, real) for unit, (rates, real) in kept.items() if rates >= enough)
    return rounded(unit), real


def count_of(rate: float, unit: float) -> int:
    return int(rate / unit + TOLERANCE)


def distinct(rates: Iterable[float]) -> list[float]:
    """Return one rate, the least, for all that are at most ``TOLERANCE`` faster."""
    found = list[float]()
    for rate in sorted(rates):
        if not found or rate > found[-1] * (1 + TOLERANCE):
            found.append(rate)
    return found
