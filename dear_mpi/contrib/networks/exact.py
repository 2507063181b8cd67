"""Find the fewest steps of an all-gather, and prove that no schedule has fewer, by constraint programming (CP-SAT).

A variable for each step, link and chunk: whether it is sent. Each rank receives each chunk once, links and ports carry
at most their units, and a rank sends only what it has. Chunks of one rank can be exchanged, so the first one is to
arrive first at a neighbour. The solver runs in one thread with a limit that is counted in its own operations: all ranks
of a job find the same.

Needs OR-tools: ``pip install dear-mpi[synth]``.
"""

from collections import defaultdict
from itertools import pairwise, product
from typing import Any

from dear_mpi.contrib.networks.graph import Graph, distances
from dear_mpi.contrib.networks.greedy import Move, Schedule

MOST_RANKS, MOST_SENT = 8, 20_000  # ranks; moves to choose from
LIMIT = 4.0  # of the solver's own seconds, for all numbers of steps


def improved(graph: Graph, known: Schedule, least: int, limit: float = LIMIT) -> tuple[Schedule, int]:
    """Return the shortest schedule that is found, and a number of steps that every schedule needs.

    Args:
        known: of the same parts; it is returned if none is shorter.
        least: steps that are known to be needed.
        limit: of the solver, in its deterministic seconds.
    """
    few = MOST_SENT // max(1, len(graph.links) * graph.size * known.parts)
    if least >= min(known.steps, few + 1):
        return known, least
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return known, least
    needed = least
    for steps in range(least, min(known.steps, few + 1)):
        model, solver = cp_model.CpModel(), cp_model.CpSolver()
        sent = variables(model, graph, known.parts, steps)
        solver.parameters.num_workers, solver.parameters.random_seed = 1, 1
        solver.parameters.max_deterministic_time = limit
        status = solver.solve(model)
        limit -= solver.response_proto.deterministic_time
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            moves = (move for move, variable in sent.items() if solver.boolean_value(variable))
            return Schedule(known.parts, steps, tuple(sorted(moves))), needed
        if status == cp_model.INFEASIBLE and needed == steps:
            needed = steps + 1
        if limit <= 0:
            break
    return known, needed


def variables(model: Any, graph: Graph, parts: int, steps: int) -> dict[Move, Any]:
    """Describe all schedules of this many steps; return whether each move is made."""
    hops, moves = [distances(graph, rank) for rank in range(graph.size)], dict[Move, Any]()
    arriving = defaultdict[tuple[int, int], list[tuple[int, Any]]](list)  # by rank and chunk
    loads = defaultdict[tuple[int, int, int], list[Any]](list)  # by step, kind (link, port out, port in) and number
    for step in range(steps):
        for number, ((source, dest), (outs, ins)) in enumerate(graph.passed.items()):
            for chunk in range(graph.size * parts):
                owner = chunk // parts
                if dest == owner or hops[owner][source] > step:
                    continue
                sent = moves[Move(step, source, dest, chunk)] = model.new_bool_var("")
                arriving[dest, chunk].append((step, sent))
                keys = [(0, number), *((1, port) for port in outs), *((2, port) for port in ins)]
                for kind, loaded in keys:
                    loads[step, kind, loaded].append(sent)
    for rank, chunk in product(range(graph.size), range(graph.size * parts)):
        if rank != chunk // parts:
            model.add_exactly_one(sent for _, sent in arriving[rank, chunk])  # of none: it cannot arrive
    rates = [*graph.links.values()], [port.out for port in graph.ports], [port.into for port in graph.ports]
    for (_, kind, number), sending in loads.items():
        if len(sending) > rates[kind][number]:
            model.add(sum(sending) <= int(rates[kind][number]))
    for (step, source, _, chunk), sent in moves.items():
        if source != chunk // parts:
            model.add(sent <= sum(each for when, each in arriving[source, chunk] if when < step))
    for owner, peers in enumerate(graph.peers):  # a rank's chunks arrive in order at its first peer
        chunks = range(owner * parts, (owner + 1) * parts)
        times = [sum(when * each for when, each in arriving[peers[0], chunk]) for chunk in chunks]
        for one, other in pairwise(times):
            model.add(one <= other)
    return moves
