"""Random networks, and oracles that try everything."""

import random
from fractions import Fraction
from itertools import product

from dear_mpi.contrib.networks.graph import Graph, Port


def random_graph(size, seed, *, caps=(1, 2), extra=None, port=None, symmetric=False):
    """A ring with further links; rates are whole units. ``port``: units of a port of each rank."""
    rnd, links = random.Random(seed), {}

    def connect(one, other):
        links[one, other] = rnd.choice(caps)
        links[other, one] = links[one, other] if symmetric else rnd.choice(caps)

    for rank in range(size):
        connect(rank, (rank + 1) % size)
    for _ in range(rnd.randrange(size) if extra is None else extra):
        connect(*rnd.sample(range(size), 2))
    ports = () if port is None else tuple(Port((rank,), port, port) for rank in range(size))
    return Graph(size, links, ports)


def hosts_graph(hosts, ranks, *, inside=4, uplink=2):
    """Hosts of several ranks that share an uplink."""
    size = hosts * ranks
    pairs = [(one, other) for one in range(size) for other in range(size) if one != other]
    links = {pair: inside if pair[0] // ranks == pair[1] // ranks else uplink for pair in pairs}
    ports = tuple(Port(tuple(range(first, first + ranks)), uplink, uplink) for first in range(0, size, ranks))
    return Graph(size, links, ports)


def worst_cut(graph):
    """The largest |S| / (units that leave S), over all sets of ranks; of links without ports."""
    found = Fraction(0)
    for mask in range(1, (1 << graph.size) - 1):
        out = sum(rate for (one, other), rate in graph.links.items() if mask >> one & 1 > mask >> other & 1)
        found = max(found, Fraction(mask.bit_count(), int(out)))
    return found


def narrowest(graph, links):
    """What these links carry at most: the least sum of full ports and of links outside of them, by trying all ports."""
    rates = [rate for port in graph.ports for rate in (port.out, port.into)]
    used = {pair: {2 * n for n in graph.passed[pair][0]} | {2 * n + 1 for n in graph.passed[pair][1]} for pair in links}
    found = []
    for full in product((False, True), repeat=len(rates)):
        chosen = {number for number, each in enumerate(full) if each}
        free = sum(graph.links[pair] for pair in links if not used[pair] & chosen)
        found.append(free + sum(rates[number] for number in chosen))
    return Fraction(min(found))


def worst_of_all(graph):
    """The largest time of a set: to send what it owns, or to receive all that it lacks; ports are of single ranks."""
    found = Fraction(0)
    for mask in range(1, (1 << graph.size) - 1):
        inside = {rank for rank in range(graph.size) if mask >> rank & 1}
        out = [pair for pair in graph.links if pair[0] in inside and pair[1] not in inside]
        into = [pair for pair in graph.links if pair[1] in inside]
        found = max(found, len(inside) / narrowest(graph, out))
        found = max(found, len(inside) * (graph.size - 1) / narrowest(graph, into))
    return max(found, Fraction(graph.size * (graph.size - 1)) / narrowest(graph, graph.links))


def fewest_steps(graph, parts=1):
    """The least steps of an all-gather, by trying all moves from all states that no other state contains."""
    whole, size = (1 << graph.size * parts) - 1, graph.size
    states, steps = {tuple(((1 << parts) - 1) << rank * parts for rank in range(size))}, 0
    while (whole,) * size not in states:
        states = undominated(set().union(*(nexts(graph, state, graph.size * parts) for state in states)))
        steps += 1
    return steps


def nexts(graph, state, chunks):
    """All states after a step."""
    room = tuple(units for port in graph.ports for units in (port.out, port.into))
    found = {(state, room)}
    for (source, dest), units in graph.links.items():
        outs, ins = graph.passed[source, dest]
        used = [2 * number for number in outs] + [2 * number + 1 for number in ins]
        for _ in range(int(units)):
            found |= {
                moved(after, room, dest, chunk, used)
                for after, room in found
                for chunk in range(chunks)
                if (state[source] & ~after[dest]) >> chunk & 1 and all(room[port] for port in used)
            }
    return {after for after, _ in found}


def moved(state, room, dest, chunk, used):
    after, left = list(state), list(room)
    after[dest] |= 1 << chunk
    for port in used:
        left[port] -= 1
    return tuple(after), tuple(left)


def undominated(states):
    found = []
    for state in sorted(states, key=lambda state: -sum(held.bit_count() for held in state)):
        if not any(all(held & ~more == 0 for held, more in zip(state, other, strict=True)) for other in found):
            found.append(state)
    return set(found)


def check_schedule(graph, schedule):
    """Each rank gets each chunk once, sends only what it has, and no link or port carries more than its units."""
    held = {(rank, rank * schedule.parts + part): 0 for rank, part in product(range(graph.size), range(schedule.parts))}
    loads = {}
    for step, source, dest, chunk in sorted(schedule.moves):
        assert held[source, chunk] <= step < schedule.steps
        assert (dest, chunk) not in held
        held[dest, chunk] = step + 1
        outs, ins = graph.passed[source, dest]
        for key in [("link", source, dest), *(("out", n) for n in outs), *(("into", n) for n in ins)]:
            loads[step, key] = loads.get((step, key), 0) + 1
    assert len(held) == graph.size**2 * schedule.parts
    for (_, (kind, number, *dest)), load in loads.items():
        assert load <= (graph.links[number, dest[0]] if dest else getattr(graph.ports[number], kind))
