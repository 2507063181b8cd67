"""Make an all-gather for many equal hosts from two small ones: between hosts, and inside one.

    between     rank i of each host exchanges chunks with the ranks i of other hosts, by one schedule for all i
    inside      what has arrived at rank i goes to the other ranks of its host in the next steps, by one schedule for
                all hosts

A rank gets its share of its host's port. Links of a class count with the slowest rate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from dear_mpi.collectives.program.hosts import by_host
from dear_mpi.contrib.networks.graph import Graph, Port
from dear_mpi.contrib.networks.greedy import Move, Schedule

Pair = tuple[int, int]


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


def classes(graph: Graph, members: Callable[[int, int], Iterable[Pair]], size: int) -> Mapping[Pair, float]:
    """Return the slowest rate of each class of links that are all there."""
    pairs = [(one, other) for one in range(size) for other in range(size) if one != other]
    rates = {pair: [graph.links.get(link, 0.0) for link in members(*pair)] for pair in pairs}
    return {pair: min(found) for pair, found in rates.items() if all(found)}


def joined(groups: list[list[int]], between: Schedule, inside: Schedule) -> Schedule:
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
