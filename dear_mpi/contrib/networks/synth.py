"""Make collectives for a network: ``--algorithm synth:FILE``, of a graph or of ``links``, or ``synth:torus:4x4``.

An all-gather is searched on the graph. Its mirror image is the reduce-scatter, and both in turn are the all-reduce. If
directions differ in their rates, the reduce-scatter comes from another search, with all directions exchanged. Rates are
rounded to small whole units (``bound.py``), so that a step sends whole chunks. More chunks per rank come nearer to the
bound, but in more steps: the fewest within 2 % of the best time for 16 MiB are taken.

Many equal hosts get an all-gather from two small ones:

    between     rank i of each host exchanges chunks with the ranks i of other hosts, by one schedule for all i
    inside      what has arrived at rank i goes to the other ranks of its host in the next steps, by one schedule for
                all hosts

A rank gets its share of its host's port. Links of a class count with the slowest rate.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dear_mpi.collectives.algorithms.registry import fixed, mirrored
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import by_host, format_rate
from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, Step
from dear_mpi.contrib.networks import exact
from dear_mpi.contrib.networks.bound import Cut, cut_bound, in_units, least_steps
from dear_mpi.contrib.networks.graph import Graph, Port, read_graph
from dear_mpi.contrib.networks.greedy import Move, Schedule, search
from dear_mpi.contrib.networks.network import GraphNetwork
from dear_mpi.reporting.units import format_numbers, plural

PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)  # chunks per rank that are tried
MOST_PARTS = 8  # times the units of the fastest link
NEAR = 0.02  # to the bound, or to the best
CLEARLY = 1.05
TYPICAL = 16 << 20  # bytes, for which latency counts
MOST_FLAT = 32  # ranks on equal hosts that are also searched at once
MOST_MOVES = 100_000  # of the schedule with most parts

Pair = tuple[int, int]


@dataclass(frozen=True)
class Result:
    """A schedule of one direction.

    Attributes:
        graph: in whole units.
        unit: bytes/s.
        least: steps that the bound and the longest path need.
        needed: steps that all schedules of as many parts need, also by exhaustive search.
    """

    graph: Graph
    unit: float
    cut: Cut
    schedule: Schedule
    least: int
    needed: int

    def __str__(self) -> str:
        if self.graph.size == 1:
            return "0 steps: one rank has all chunks."
        cut, steps, parts = self.cut, self.schedule.steps, plural(self.schedule.parts, "chunk")
        bound, chunks = cut.time * self.schedule.parts, plural(cut.units * self.schedule.parts, "chunk")
        ranks = f"rank{'s' * (len(cut.ranks) > 1)} {format_numbers(cut.ranks)}"
        lines = [
            f"{plural(steps, 'step')}, with {parts} per rank; a unit is {format_rate(self.unit)}: a chunk in a step.",
            f"Bound: {float(bound):.4g} step{'s' * (bound != 1)}: {chunks} must "
            f"{'leave' if cut.need is None else 'reach'} {ranks}, {float(cut.rate):.4g} in a step.",
            f"Gap: {float(steps / bound - 1):.1%}.",
        ]
        if self.needed < steps:
            lines.append(f"No certificate: at least {plural(self.needed, 'step')} are needed.")
        else:
            why = "exhaustive search, CP-SAT" if self.least < steps else "longest path, or last step"
            why = "cut bound" if math.ceil(bound) == steps else why
            lines.append(f"Certificate: no schedule with {parts} per rank has fewer steps ({why}).")
        return " ".join(lines)


def synthesise(graph: Graph, parts: int | None = None) -> Result:
    """Search an all-gather; ``parts``: chunks per rank, by default the fewest that come near the bound."""
    whole, unit = in_units(graph)
    cut, best = cut_bound(whole), None

    def time(steps: int, count: int) -> float:
        return steps * (graph.alpha + TYPICAL / (graph.size * count * unit))

    most = MOST_PARTS * max(whole.links.values(), default=1)
    for count in [each for each in PARTS if each <= most] if parts is None else [parts]:
        least = least_steps(whole, count, cut)
        if best is not None:
            if graph.size**2 * count > MOST_MOVES or best.steps <= float(best.parts * cut.time) * (1 + NEAR):
                break
            if time(least, count) > (1 - NEAR) * time(best.steps, best.parts):
                continue
        found = search(whole, count, least)
        if best is None or time(found.steps, count) <= (1 - NEAR) * time(best.steps, best.parts):
            best = found
    assert best is not None, "one number of parts is always tried"
    least = needed = least_steps(whole, best.parts, cut)
    if graph.size <= exact.MOST_RANKS:
        best, needed = exact.improved(whole, best, least)
    return Result(whole, unit, cut, best, least, needed)


def schedule_of(graph: Graph, parts: int | None = None) -> tuple[Schedule, str]:
    """Return a schedule and its bound in words: of equal hosts in two levels, unless more steps are clearly faster."""
    levels = by_levels(graph, parts)
    if levels is not None and graph.size > MOST_FLAT:
        return levels
    found = synthesise(graph, parts)
    flat = found.schedule, str(found)
    return levels if levels and seconds(graph, levels[0]) <= CLEARLY * seconds(graph, flat[0]) else flat


def by_levels(graph: Graph, parts: int | None = None) -> tuple[Schedule, str] | None:
    levels = levels_of(graph)
    if levels is None:
        return None
    groups, *graphs = levels
    between, inside = synthesise(graphs[0], parts), synthesise(graphs[1], 1)
    schedule = two_levels(groups, between.schedule, inside.schedule)
    text = f"{plural(schedule.steps, 'step')} in two levels. Between hosts: {between} Inside hosts, at a time: {inside}"
    return schedule, text


def levels_of(graph: Graph) -> tuple[list[list[int]], Graph, Graph] | None:
    """Return the ranks of each host, a graph of hosts, and one of a host's ranks; None if hosts differ."""
    if graph.hosts is None:
        return None
    groups = by_host(graph.hosts)
    across, each = range(len(groups)), range(len(groups[0]))
    if len({len(ranks) for ranks in groups}) > 1 or len(groups) == 1:
        return None
    between = classes(graph, lambda h, k: ((groups[h][i], groups[k][i]) for i in each), len(groups))
    inside = classes(graph, lambda i, j: ((ranks[i], ranks[j]) for ranks in groups), len(groups[0]))
    shared = {port.ranks: port for port in graph.ports}
    uplinks = [shared[tuple(sorted(ranks))] for ranks in groups]
    ports = tuple(Port((h,), uplinks[h].out / len(each), uplinks[h].into / len(each)) for h in across)
    own = [[shared.get((ranks[i],)) for ranks in groups] for i in each]
    limits = ((i, [port for port in own[i] if port]) for i in each)
    inner = tuple(Port((i,), min(p.out for p in some), min(p.into for p in some)) for i, some in limits if some)
    found = Graph(len(groups), between, ports, graph.alpha), Graph(len(each), inside, inner, graph.alpha)
    return None if any(level.unreachable() for level in found) else (groups, *found)


def classes(graph: Graph, members: Callable[[int, int], Iterable[Pair]], size: int) -> dict[Pair, float]:
    """Return the slowest rate of each class of links that are all there."""
    pairs = [(one, other) for one in range(size) for other in range(size) if one != other]
    rates = {pair: [graph.links.get(link, 0.0) for link in members(*pair)] for pair in pairs}
    return {pair: min(found) for pair, found in rates.items() if all(found)}


def two_levels(groups: list[list[int]], between: Schedule, inside: Schedule) -> Schedule:
    """``inside``: of one part."""
    parts, moves = between.parts, list[Move]()
    arrived = defaultdict[int, list[tuple[int, int]]](list)  # by host: owner's host and part, with the next step
    for host in range(len(groups)):
        arrived[host] += [(0, host * parts + part) for part in range(parts)]
    for step, source, dest, chunk in between.moves:
        arrived[dest].append((step + 1, chunk))
        owner, part = divmod(chunk, parts)
        moves += [
            Move(step, groups[source][i], groups[dest][i], ranks * parts + part)
            for i, ranks in enumerate(groups[owner])
        ]
    for host, ranks in enumerate(groups):
        for step, chunk in arrived[host]:
            owner, part = divmod(chunk, parts)
            moves += [
                Move(step + later, ranks[i], ranks[j], groups[owner][k] * parts + part)
                for later, i, j, k in inside.moves
            ]
    return Schedule(parts, max(move.step for move in moves) + 1, tuple(sorted(moves)))


def seconds(graph: Graph, schedule: Schedule) -> float:
    return cost(programs_of(schedule, graph.size), TYPICAL, 1, GraphNetwork.of(graph)).time_s


def programs_of(schedule: Schedule, size: int) -> list[Program]:
    """Return all ranks' programs of an all-gather; a transfer has one chunk, so that its mirror image is valid."""
    sends = [[list[Send]() for _ in range(schedule.steps)] for _ in range(size)]
    receives = [[list[Receive]() for _ in range(schedule.steps)] for _ in range(size)]
    for step, source, dest, chunk in sorted(schedule.moves):
        sends[source][step].append(Send(dest, range(chunk, chunk + 1)))
        receives[dest][step].append(Receive(source, range(chunk, chunk + 1)))

    def steps(rank: int) -> tuple[Step, ...]:
        return tuple(Step(tuple(out), tuple(into)) for out, into in zip(sends[rank], receives[rank], strict=True))

    return [Program("all_gather", rank, size, steps(rank), schedule.parts) for rank in range(size)]


def synth(text: str) -> dict[str, Algorithm]:
    """Make the algorithms by collective for a file or a shape; ``explain`` prints their docstrings.

    Raises:
        ValueError: the file or the shape cannot be read.
    """
    graph = read_graph(text)
    schedule, summary = schedule_of(graph)
    gather = programs_of(schedule, graph.size)
    if in_units(graph) == in_units(graph.reverse):
        return {"all_gather": fixed(gather, summary)}
    backwards, turned = schedule_of(graph.reverse, schedule.parts)
    scatter = [
        replace(each, collective="reduce_scatter", steps=mirrored(each)) for each in programs_of(backwards, graph.size)
    ]
    both = [
        replace(then, collective="all_reduce", steps=first.steps + then.steps)
        for first, then in zip(scatter, gather, strict=True)
    ]
    return {
        "reduce_scatter": fixed(scatter, turned),
        "all_gather": fixed(gather, summary),
        "all_reduce": fixed(both, f"Reduce-scatter: {turned}\nAll-gather: {summary}"),
    }
