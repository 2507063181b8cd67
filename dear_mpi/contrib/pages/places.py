"""Place ranks on a page by their communication pattern; no algorithm names are read.

    ring        every rank talks to its neighbours only
    star        all talk to one rank
    tree        each chunk's messages make a tree; there are at most two, as in a double tree
    hypercube   ranks talk to those whose numbers differ in one bit only
    torus       ranks talk to neighbours in a row and in a column
    hosts       a box for each of several hosts
    circle      anything else

Coordinates are from 0 to 1, to the right and down.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.collectives.program.hosts import by_host
from dear_mpi.see.explain import Replayed

Edge = frozenset[int]
Place = tuple[float, float]
MOST_TREES = 2
RING = "A ring: every rank talks to its neighbours only."
SILENT = "Nothing is sent."
STAR = "A star: all ranks talk to rank {root}."
TREE = "A tree: messages go along its branches, whose root is rank {root}."
TREES = "Two trees, each for some of the chunks. Shown is that of {chunks}; follow another chunk to see the other."
TORUS = "A torus of {rows} rows and {columns} columns: every rank talks to its neighbours in both."
CUBE = "A hypercube of {bits} dimensions: every rank talks to the ranks whose numbers differ from its own in one bit."
SQUARE = "A square, which is a hypercube of 2 dimensions and a torus of 2 rows and 2 columns."
HOSTS = "{hosts} hosts, each in a box."
CIRCLE = "A circle: every rank talks to several others."


@dataclass(frozen=True)
class Places:
    """Places of ranks, for some chunks; ``boxes``: the ranks of each host, if several."""

    kind: str
    said: str
    at: Sequence[Place]
    boxes: Sequence[Sequence[int]] = field(default_factory=tuple)

    def data(self) -> dict[str, Any]:
        across, down = (stretched([place[axis] for place in self.at]) for axis in (0, 1))
        at = list(map(list, zip(across, down, strict=True)))
        return {"kind": self.kind, "said": self.said, "at": at, "boxes": list(map(list, self.boxes))}


def stretched(values: Sequence[float]) -> list[float]:
    """Stretch values to 0..1.

    >>> stretched([0.25, 0.75, 0.5]), stretched([0.2, 0.2])
    ([0.0, 1.0, 0.5], [0.5, 0.5])
    """
    low, high = min(values), max(values)
    return [round((value - low) / (high - low), 4) if high > low else 0.5 for value in values]


def places_of(replayed: Replayed, hosts: Sequence[int]) -> tuple[list[Places], list[int]]:
    """Return every picture of the ranks, and the index of the picture for each chunk."""
    by_chunk = edges_by_chunk(replayed)
    size, chunks = len(hosts), replayed.programs[0].chunks
    edges = {edge for each in by_chunk.values() for edge in each}
    whole = [0] * chunks
    if len(set(hosts)) > 1:
        return [on_hosts(hosts)], whole
    if all(is_next(edge, size) for edge in edges):
        return [Places("ring", RING if edges else SILENT, ellipse(size))], whole
    kinds = list(dict.fromkeys(frozenset(each) for each in by_chunk.values()))
    if len(kinds) <= MOST_TREES and all(len(each) == size - 1 and len(levels(each, 0)) == size for each in kinds):
        shown = [kinds.index(frozenset(by_chunk[chunk])) if chunk in by_chunk else 0 for chunk in range(chunks)]
        return [tree(replayed, each, shown, number, len(kinds)) for number, each in enumerate(kinds)], shown
    whole_cube = size * (size.bit_length() - 1) // 2  # edges
    if size.bit_count() == 1 and len(edges) == whole_cube and all(is_one_bit(edge) for edge in edges):
        return [hypercube(size)], whole
    for rows in divisors(size):
        if all(is_near(edge, rows, size // rows) for edge in edges):
            return [torus(rows, size // rows)], whole
    return [Places("circle", CIRCLE, ellipse(size))], whole


def edges_by_chunk(replayed: Replayed) -> Mapping[int, set[Edge]]:
    """Return the pairs of ranks that exchange each chunk."""
    found = defaultdict[int, set[Edge]](set)
    for program in replayed.programs:
        for send in (send for step in program.steps for send in step.sends):
            for chunk in send.chunks:
                found[chunk].add(frozenset((program.rank, send.peer)))
    return dict(sorted(found.items()))


def is_next(edge: Edge, size: int) -> bool:
    low, high = sorted(edge)
    return high - low in (1, size - 1)


def is_one_bit(edge: Edge) -> bool:
    low, high = edge
    return (low ^ high).bit_count() == 1


def is_near(edge: Edge, rows: int, columns: int) -> bool:
    """Whether two ranks are neighbours in a row or a column with wrap-around."""
    low, high = (divmod(rank, columns) for rank in sorted(edge))
    if low[0] == high[0]:
        return is_next(frozenset((low[1], high[1])), columns)
    return low[1] == high[1] and is_next(frozenset((low[0], high[0])), rows)


def divisors(size: int) -> Iterator[int]:
    """Yield numbers of rows, from 2 to the number of columns, the squarest grid first."""
    return (rows for rows in range(math.isqrt(size), 1, -1) if size % rows == 0)


def levels(edges: frozenset[Edge], root: int) -> dict[int, tuple[int, int | None]]:
    """Return each reachable rank's distance from the root and its parent, parents first."""
    found: dict[int, tuple[int, int | None]] = {root: (0, None)}
    waiting = [root]
    while waiting:
        rank = waiting.pop(0)
        for other in sorted(peer for edge in edges if rank in edge for peer in edge if peer != rank):
            if other not in found:
                found[other] = (found[rank][0] + 1, rank)
                waiting.append(other)
    return found


def root_of(replayed: Replayed, chunk: int) -> int:
    """Return the first rank with the whole chunk."""
    for number in range(len(replayed.rows[0])):
        for rank, history in enumerate(replayed.rows):
            if history[number][chunk] == replayed.complete[rank][chunk]:
                return rank
    return 0


def tree(replayed: Replayed, edges: frozenset[Edge], shown: Sequence[int], number: int, count: int) -> Places:
    """Place the root on top and leaves side by side; make a star if all but the root are leaves."""
    mine = [chunk for chunk, each in enumerate(shown) if each == number]
    size, root = len(shown) // replayed.programs[0].parts, root_of(replayed, mine[0])
    found = levels(edges, root)
    deepest = max(depth for depth, _ in found.values())
    if count == 1 and deepest == 1 and size > 3:
        others = iter(ellipse(size - 1))
        return Places("star", STAR.format(root=root), [(0.5, 0.5) if r == root else next(others) for r in range(size)])
    children = defaultdict[int | None, list[int]](list)
    for rank, (_, parent) in found.items():
        children[parent].append(rank)
    across: dict[int, float] = {}
    leaves = [0]

    def spread(rank: int) -> float:
        below = [spread(child) for child in children[rank]]
        if not below:
            leaves[0] += 1
        across[rank] = (below[0] + below[-1]) / 2 if below else leaves[0] - 0.5
        return across[rank]

    spread(root)
    at = [(across[rank] / leaves[0], (found[rank][0] + 0.5) / (deepest + 1)) for rank in range(size)]
    chunks = f"chunk{'s' * (len(mine) > 1)} {mine[0]}{f' to {mine[-1]}' * (len(mine) > 1)}"
    return Places("tree", (TREES if count > 1 else TREE).format(root=root, chunks=chunks), at)


def ellipse(size: int) -> list[Place]:
    """Place ranks clockwise from the top; two go side by side."""
    if size == 1:
        return [(0.5, 0.5)]
    first = -math.pi if size == 2 else -math.pi / 2
    angles = [first + 2 * math.pi * rank / size for rank in range(size)]
    return [(0.5 + 0.5 * math.cos(angle), 0.5 + 0.5 * math.sin(angle)) for angle in angles]


def torus(rows: int, columns: int) -> Places:
    at = [((column + 0.5) / columns, (row + 0.5) / rows) for row in range(rows) for column in range(columns)]
    return Places("torus", TORUS.format(rows=rows, columns=columns), at)


def hypercube(size: int) -> Places:
    """Place ranks on a grid by a Gray code: those that talk are neighbours in a row or column, with wrap-around."""
    bits = (size - 1).bit_length()
    columns = 1 << (bits + 1) // 2
    rows = size // columns
    place = {number ^ number >> 1: number for number in range(columns)}
    at = [((place[rank % columns] + 0.5) / columns, (place[rank // columns] + 0.5) / rows) for rank in range(size)]
    return Places("hypercube", CUBE.format(bits=bits) if bits > 2 else SQUARE, at)


def on_hosts(hosts: Sequence[int]) -> Places:
    members = by_host(hosts)
    columns = math.ceil(math.sqrt(len(members)))
    rows = -(-len(members) // columns)
    across = math.ceil(math.sqrt(max(map(len, members))))
    down = -(-max(map(len, members)) // across)
    at: dict[int, Place] = {}
    for number, ranks in enumerate(members):
        row, column = divmod(number, columns)
        for place, rank in enumerate(ranks):
            inner_row, inner_column = divmod(place, across)
            x = (column + 0.08 + 0.84 * (inner_column + 0.5) / across) / columns
            y = (row + 0.12 + 0.84 * (inner_row + 0.5) / down) / rows
            at[rank] = (x, y)
    said = HOSTS.format(hosts=len(members))
    return Places("hosts", said, [at[rank] for rank in range(len(hosts))], members)
