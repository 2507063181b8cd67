"""Make collectives for a network: ``--algorithm synth:FILE``, of a graph or of ``links``, or ``synth:torus:4x4``.

An all-gather is searched on the graph, and another with all directions exchanged. The mirror image of that one is the
reduce-scatter, and both in turn are the all-reduce. Rates are rounded to small whole units (``bound.py``), so that a
step sends whole chunks. More chunks per rank come nearer to the bound, but in more steps: the fewest within 2 % of the
best time for 16 MiB are taken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from dear_mpi.collectives.algorithms.registry import family
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.contrib.networks import exact
from dear_mpi.contrib.networks.bound import Cut, cut_bound, in_units, least_steps
from dear_mpi.contrib.networks.graph import Graph, read_graph
from dear_mpi.contrib.networks.greedy import Schedule, search
from dear_mpi.contrib.networks.levels import joined, levels_of
from dear_mpi.contrib.networks.network import GraphNetwork
from dear_mpi.reporting.units import format_numbers, plural

PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)  # chunks per rank that are tried
MOST_PARTS = 8  # times the units of the fastest link
NEAR = 0.02  # to the bound, or to the best
CLEARLY = 1.05
TYPICAL = 16 << 20  # bytes, for which latency counts
MOST_FLAT = 32  # ranks on equal hosts that are also searched at once
MOST_MOVES = 100_000  # of the schedule with most parts

Algorithm = Callable[[int, int], Program]


@dataclass(frozen=True)
class Found:
    """A schedule of one direction.

    Attributes:
        graph: in whole units.
        unit: bytes/s.
        least: steps that the bound and the longest way need.
        needed: steps that all schedules of as many parts need, also by exhaustive search.
    """

    graph: Graph
    unit: float
    cut: Cut
    schedule: Schedule
    least: int
    needed: int

    @property
    def bound(self) -> Fraction:
        """Return the least steps of this many parts, perhaps a fraction."""
        return self.cut.time * self.schedule.parts

    @property
    def gap(self) -> float:
        return float(self.schedule.steps / self.bound - 1)

    def __str__(self) -> str:
        schedule, parts, steps = self.schedule, plural(self.schedule.parts, "chunk"), self.schedule.steps
        unit = f"a unit is {format_rate(self.unit)}: a chunk in a step"
        lines = [f"{plural(steps, 'step')}, with {parts} per rank; {unit}."]
        cut, chunks = self.cut, plural(self.cut.units * schedule.parts, "chunk")
        own, leave = ("own", "leave") if cut.need is None else ("receive", "reach")
        lines += [
            f"Bound: {float(self.bound):.4g} steps, as ranks {format_numbers(cut.ranks)} {own} {chunks}, "
            f"and {float(cut.out):.4g} {leave} them in a step. Gap: {self.gap:.1%}."
        ]
        if self.needed == steps:
            cannot = f"{plural(steps - 1, 'step')} cannot do with {parts} per rank"
            why = "by exhaustive search (CP-SAT)" if self.least < steps else "by the longest way or its last step"
            why = "by the bound" if math.ceil(self.bound) == steps else why
            lines.append(f"Certificate: {cannot}, {why}.")
        else:
            lines.append(f"No certificate: at least {plural(self.needed, 'step')} are needed.")
        return " ".join(lines)


def find(graph: Graph, parts: int | None = None) -> Found:
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
    return Found(whole, unit, cut, best, least, needed)


def schedule_of(graph: Graph, parts: int | None = None) -> tuple[Schedule, str]:
    """Return a schedule and its bound in words: of equal hosts in two levels, unless more steps are clearly faster."""
    levels = by_levels(graph, parts)
    if levels is not None and graph.size > MOST_FLAT:
        return levels
    found = find(graph, parts)
    flat = found.schedule, str(found)
    return levels if levels and seconds(graph, levels[0]) <= CLEARLY * seconds(graph, flat[0]) else flat


def by_levels(graph: Graph, parts: int | None = None) -> tuple[Schedule, str] | None:
    levels = levels_of(graph)
    if levels is None:
        return None
    groups, *graphs = levels
    between, inside = find(graphs[0], parts), find(graphs[1], 1)
    schedule = joined(groups, between.schedule, inside.schedule)
    told = f"{plural(schedule.steps, 'step')} in two levels. Between hosts: {between} Inside hosts, at a time: {inside}"
    return schedule, told


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


def synthesise(graph: Graph, name: str = "the graph") -> dict[str, Algorithm]:
    """Return the algorithms by collective; ``explain`` prints their docstrings: steps, bound, gap and certificate."""
    schedule, told = schedule_of(graph)
    gather = backwards = written(schedule, told, graph.size, name)
    if in_units(graph) != in_units(graph.reverse):
        backwards = written(*schedule_of(graph.reverse, schedule.parts), graph.size, name)
    scatter = family(backwards, "all_gather")["reduce_scatter"]

    def all_reduce(rank: int, size: int) -> Program:
        first, then = scatter(rank, size), gather(rank, size)
        return replace(then, collective="all_reduce", steps=first.steps + then.steps)

    all_reduce.__doc__ = told
    if backwards is not gather:
        all_reduce.__doc__ = f"Reduce-scatter: {scatter.__doc__}\nAll-gather: {told}"
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": all_reduce}


def written(schedule: Schedule, told: str, size: int, name: str) -> Algorithm:
    ranks = programs_of(schedule, size)

    def all_gather(rank: int, size: int) -> Program:
        if size != len(ranks):
            raise ValueError(f"{name} has {len(ranks)} ranks, not {size}: take as many")
        return ranks[rank]

    all_gather.__doc__ = told
    return all_gather


def synth(text: str) -> dict[str, Algorithm]:
    """Make collectives for a file or a shape; ValueError: it cannot be read."""
    path = Path(text)
    return made(text, path.read_bytes() if text.endswith(".json") and path.is_file() else b"")


@lru_cache(maxsize=32)
def made(text: str, content: bytes) -> dict[str, Algorithm]:
    return synthesise(read_graph(text), text)
