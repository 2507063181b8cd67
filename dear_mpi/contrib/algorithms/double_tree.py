r"""Double binary tree: each tree carries half of the data; inner ranks of one are leaves of the other.

            8 ranks         0                        7
                            |                        |
                            4                        3
                         /     \                  /     \
                        2       6                5       1
                       / \     / \              / \     / \
                      1   3   5   7            6   4   2   0

Segments follow each other up a tree, being combined, and down again. In one tree the leaves, half of the ranks, would
only send up and receive down; two trees use every port in both directions. The second tree mirrors the rank numbers, or
shifts them by one if their number is odd.

Cost for n bytes on P ranks in k segments: 2 n beta + (2 lg P + k/2) alpha for large k, in k/2 + 2 lg P - 1 steps. It
suits medium buffers on many hosts.

Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
Computing 35 (2009); NCCL builds its trees in this way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dear_mpi.collectives import chunk_bounds
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_reduce(rank: int, size: int, pieces: int = 1) -> Program:
    each = max(1, -(-pieces // 2))  # per tree
    parts = -(-2 * each // size)
    parts += parts * size % 2  # for two equal halves
    half = parts * size // 2
    tree = Tree(size)
    turned = [size - 1 - vrank if size % 2 == 0 else (vrank + 1) % size for vrank in range(size)]
    steps: list[list[Send | Receive]] = [[] for _ in range(each + 2 * tree.height - 1 if size > 1 else 0)]
    for offset, names in ((0, range(size)), (half, turned)):
        for number, duty in tree.duties(names.index(rank)):
            for piece in range(each):
                start, stop = chunk_bounds(half, each, piece)
                chunks = range(offset + start, offset + stop)
                steps[number + piece].append(replace(duty, peer=names[duty.peer], chunks=chunks))
    return Program("all_reduce", rank, size, tuple(map(step_of, steps)), parts)


def step_of(transfers: Sequence[Send | Receive]) -> Step:
    return Step(
        tuple(each for each in transfers if isinstance(each, Send)),
        tuple(each for each in transfers if isinstance(each, Receive)),
    )


class Tree:
    """The in-order tree of virtual ranks: a rank and its parent differ in the lowest set bit and the next.

    The root, number 0, has one child.
    """

    def __init__(self, size: int) -> None:
        self.parents: list[int | None] = [None]
        for vrank in range(1, size):
            bit = vrank & -vrank
            above = vrank ^ bit | bit << 1
            self.parents.append(above if above < size else vrank ^ bit)
        self.height = self.height_of(0)

    def children(self, vrank: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == vrank]

    def depth(self, vrank: int) -> int:
        parent = self.parents[vrank]
        return 0 if parent is None else 1 + self.depth(parent)

    def height_of(self, vrank: int) -> int:
        return max((1 + self.height_of(child) for child in self.children(vrank)), default=0)

    def duties(self, vrank: int) -> Iterator[tuple[int, Send | Receive]]:
        """Yield a virtual rank's transfers of segment 0 and their steps; each further segment is one step later."""
        parent, top, piece = self.parents[vrank], self.height, range(1)
        for child in self.children(vrank):
            yield self.height_of(child), Receive(child, piece, combine=True)
            yield top + self.depth(vrank), Send(child, piece)
        if parent is not None:
            yield self.height_of(vrank), Send(parent, piece)
            yield top + self.depth(parent), Receive(parent, piece)
