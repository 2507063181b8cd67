"""Make collectives for a network: ``--algorithm synth:FILE``, of a graph or of ``links``, or ``synth:torus:4x4``.

An all-gather is searched on the graph, and another with all directions exchanged. The mirror image of that one is the
reduce-scatter, and both in turn are the all-reduce. Rates are rounded to small whole units (``bound.py``), so that a
step sends whole chunks. More parts per rank come nearer to the bound in more steps: the fewest within 2 % are taken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from statistics import mode

from dear_mpi.collectives.algorithms.registry import family
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.contrib.networks import exact
from dear_mpi.contrib.networks.bound import Cut, cut_bound, in_units, least_steps
from dear_mpi.contrib.networks.graph import Graph, read_graph
from dear_mpi.contrib.networks.greedy import Schedule, search
from dear_mpi.reporting.units import format_numbers, plural

PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)  # chunks per rank that are tried
MOST_PARTS = 8  # times the units of most links
NEAR = Fraction(1, 50)  # to the bound, or to the best
MOST_MOVES = 100_000  # of the schedule with most parts

Algorithm = Callable[[int, int], Program]


@dataclass(frozen=True)
class Found:
    """A schedule of one direction; ``needed``: steps that all schedules of its parts need; ``unit``: bytes/s."""

    graph: Graph
    unit: float
    cut: Cut
    schedule: Schedule
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
        cut, few = self.cut, len(self.cut.ranks) * schedule.parts
        lines += [
            f"Bound: {float(self.bound):.4g} steps, as ranks {format_numbers(cut.ranks)} own {plural(few, 'chunk')}, "
            f"and {float(cut.out):.4g} leave them in a step. Gap: {self.gap:.1%}."
        ]
        if self.needed == steps:
            cannot = f"{plural(steps - 1, 'step')} cannot do with {parts} per rank"
            why = "by the bound" if math.ceil(self.bound) == steps else "by exhaustive search or the longest way"
            lines.append(f"Certificate: {cannot}, {why}.")
        else:
            lines.append(f"No certificate: at least {plural(self.needed, 'step')} are needed.")
        return " ".join(lines)


def find(graph: Graph, parts: int | None = None) -> Found:
    """Search an all-gather; ``parts``: chunks per rank, by default the fewest that come near the bound."""
    whole, unit = in_units(graph)
    cut, best = cut_bound(whole), None
    most = MOST_PARTS * mode(whole.links.values() or [1])
    for count in [each for each in PARTS if each <= most] if parts is None else [parts]:
        least = least_steps(whole, count, cut)
        if best is not None:
            if graph.size**2 * count > MOST_MOVES or best.steps <= best.parts * cut.time * (1 + NEAR):
                break
            if least / count > (1 - NEAR) * best.steps / best.parts:
                continue
        found = search(whole, count, least)
        if best is None or found.steps / count <= (1 - NEAR) * best.steps / best.parts:
            best = found
    assert best is not None, "one number of parts is always tried"
    needed = least_steps(whole, best.parts, cut)
    if graph.size <= exact.MOST_RANKS:
        best, needed = exact.improved(whole, best, needed)
    return Found(whole, unit, cut, best, needed)


def programs_of(found: Found) -> list[Program]:
    """Return all ranks' programs of an all-gather; a transfer has one chunk, so that its mirror image is valid."""
    schedule, size = found.schedule, found.graph.size
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
    forth = find(graph)
    back = forth if alike(graph, graph.reverse) else find(graph.reverse, forth.schedule.parts)
    gather, scatter = written(forth, name), family(written(back, name), "all_gather")["reduce_scatter"]

    def all_reduce(rank: int, size: int) -> Program:
        first, then = scatter(rank, size), gather(rank, size)
        return replace(then, collective="all_reduce", steps=first.steps + then.steps)

    all_reduce.__doc__ = gather.__doc__
    if back is not forth:
        all_reduce.__doc__ = f"Reduce-scatter: {scatter.__doc__}\nAll-gather: {gather.__doc__}"
    return {"reduce_scatter": scatter, "all_gather": gather, "all_reduce": all_reduce}


def alike(one: Graph, other: Graph) -> bool:
    return in_units(one) == in_units(other)


def written(found: Found, name: str) -> Algorithm:
    ranks = programs_of(found)

    def all_gather(rank: int, size: int) -> Program:
        if size != len(ranks):
            raise ValueError(f"{name} has {len(ranks)} ranks, not {size}: take as many")
        return ranks[rank]

    all_gather.__doc__ = str(found)
    return all_gather


def synth(text: str) -> dict[str, Algorithm]:
    """Make collectives for a file or a shape; ValueError: it cannot be read."""
    path = Path(text)
    return made(text, path.read_bytes() if text.endswith(".json") and path.is_file() else b"")


@lru_cache(maxsize=32)
def made(text: str, content: bytes) -> dict[str, Algorithm]:
    return synthesise(read_graph(text), text)
