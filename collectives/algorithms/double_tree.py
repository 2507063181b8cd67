"""Double binary tree: two trees, each for half of the data; an inner rank of one tree is a leaf of the other.

            8 ranks         0                        7
                            |                        |
                            4                        3
                         /     \\                  /     \\
                        2       6                5       1
                       / \\     / \\              / \\     / \\
                      1   3   5   7            6   4   2   0

Pieces of the data follow each other up a tree, being combined, and down again. In one binary tree the leaves, half of
the ranks, would only send up and receive down; two trees use every rank's port in both directions. If the number of
ranks is even, the second tree numbers them from the other end; if it is odd, it shifts the numbers by one.

Cost for n bytes on P ranks in k pieces: k/2 + 2 h - 1 steps, h = lg P the height of a tree, in each of which a rank
sends up to four pieces of n/k bytes: 2 n beta + (2 lg P + k/2) alpha where k is large. It sends a few more bytes than
the ring, in few steps if the pieces are few. So it suits medium buffers on many hosts.

Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
Computing 35 (2009); NCCL builds its trees in this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_reduce(rank: int, size: int, pieces: int = 1) -> Program:
    """Every rank ends with all chunks, combined over all ranks; the buffer is sent in ``pieces`` pieces."""
    each = max(1, -(-pieces // 2))  # pieces in a tree
    parts = -(-2 * each // size)
    parts += parts * size % 2  # for two equal halves
    half = parts * size // 2
    tree = Tree.of(size)
    sends: list[list[Send]] = [[] for _ in range(each + 2 * tree.height - 1 if size > 1 else 0)]
    receives: list[list[Receive]] = [[] for _ in sends]
    for number in (0, 1):
        shift, sign = (0, 1) if number == 0 else (-1, -1) if size % 2 == 0 else (1, 1)  # rank = vrank * sign + shift
        for duty in tree.duties((rank - shift) * sign % size):
            peer = (duty.peer * sign + shift) % size
            for piece in range(each):
                start, stop = (number * half + border for border in chunk_bounds(half, each, piece))
                if duty.sends:
                    sends[piece + duty.step].append(Send(peer, range(start, stop)))
                else:
                    receives[piece + duty.step].append(Receive(peer, range(start, stop), duty.combine))
    steps = tuple(Step(tuple(out), tuple(into)) for out, into in zip(sends, receives, strict=True))
    return Program("all_reduce", rank, size, steps, parts)


@dataclass(frozen=True)
class Duty:
    """One transfer of a virtual rank for the first piece. Each further piece makes it one step later."""

    step: int
    peer: int
    sends: bool
    combine: bool = False


@dataclass(frozen=True)
class Tree:
    """A binary tree of virtual ranks. Its root, number 0, has one child; ``parents`` has None for the root."""

    parents: tuple[int | None, ...]

    @classmethod
    def of(cls, size: int) -> Tree:
        """The in-order tree: a virtual rank and its parent differ in the lowest bit that is set, and the next."""

        def parent(vrank: int) -> int:
            bit = vrank & -vrank
            above = vrank ^ bit | bit << 1
            return above if above < size else vrank ^ bit

        return cls((None, *map(parent, range(1, size))))

    def children(self, vrank: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == vrank]

    def depth(self, vrank: int) -> int:
        """Hops to the root."""
        parent = self.parents[vrank]
        return 0 if parent is None else 1 + self.depth(parent)

    def height_of(self, vrank: int) -> int:
        """Hops to the farthest leaf below."""
        return max((1 + self.height_of(child) for child in self.children(vrank)), default=0)

    @property
    def height(self) -> int:
        return self.height_of(0)

    def duties(self, vrank: int) -> Iterator[Duty]:
        """The transfers of a virtual rank: up, combining, as soon as all children have sent; then down again."""
        parent, top = self.parents[vrank], self.height
        for child in self.children(vrank):
            yield Duty(self.height_of(child), child, sends=False, combine=True)
            yield Duty(top + self.depth(vrank), child, sends=True)
        if parent is not None:
            yield Duty(self.height_of(vrank), parent, sends=True)
            yield Duty(top + self.depth(parent), parent, sends=False)
