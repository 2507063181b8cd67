"""The line: all trained parameters, one after the other, in the order in which the forward pass first uses them.

    uses    0: embedding         1: block           2: head, tied to the embedding
    line    | tokens | positions |.| weight | bias |................|
              ^ offsets: each tensor begins on 16 bytes              ^ count: a multiple of the grid

A **use** is a run of a layer in the forward pass; backward goes through the uses in reverse. What several uses share
is on the line once, where the first of them needs it. Buckets are cut on a **grid** of size x 128 bytes, so that the
shards of every bucket can be equal, and no two of them share a cache line. This is a pure map: it knows no memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dear_mpi.kernels.slab import CHUNK_BYTES, TENSOR_BYTES, round_up

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where each trained tensor lies; offsets, counts and the grid are in elements.

    Attributes:
        shapes, offsets: of each tensor, in the order of the line.
        uses: the numbers of the tensors that each use touches, in the order of the forward pass.
        grid: where buckets may begin and end, in whole numbers of it; with ``whole``, where tensors begin there, on 128
            bytes each.
        itemsize: bytes of an element of the gradients that travel.
    """

    shapes: tuple[Shape, ...]
    offsets: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]
    grid: int
    itemsize: int
    whole: bool = False

    @classmethod
    def of(
        cls,
        uses: Iterable[Sequence[tuple[Hashable, Shape]]],
        *,
        itemsize: int,
        ranks: int,
        value_size: int | None = None,
        whole: bool = False,
    ) -> Layout:
        """Put the tensors of all uses on a line.

        Args:
            uses: for each use the tensors that it touches: a key, equal for tensors that are one and the same, and a
                shape.
            value_size: bytes of an element of a value, if it has others than gradients.
            whole: whether buckets have whole tensors alone.

        >>> layout = Layout.of([[("tokens", (3,))], [], [("head", (2, 2)), ("tokens", (3,))]], itemsize=4, ranks=2)
        >>> layout.offsets, layout.uses, layout.grid, layout.count
        ((0, 4), ((0,), (), (1, 0)), 64, 64)
        """
        numbers: dict[Hashable, int] = {}
        shapes: list[Shape] = []
        touched = []
        for tensors in uses:
            for key, shape in tensors:
                if numbers.setdefault(key, len(numbers)) == len(shapes):
                    shapes.append(tuple(shape))
            touched.append(tuple(numbers[key] for key, _ in tensors))
        narrowest = min(itemsize, value_size or itemsize)
        grid = (1 if whole else ranks) * (CHUNK_BYTES // narrowest)
        aligned = grid if whole else max(1, TENSOR_BYTES // narrowest)
        offsets, end = [], 0
        for shape in shapes:
            offsets.append(end)
            end += round_up(math.prod(shape), aligned)
        return cls(tuple(shapes), tuple(offsets), tuple(touched), grid, itemsize, whole)

    @property
    def count(self) -> int:
        """Elements of the line, with the padding at its end."""
        return round_up(self.ends[-1], self.grid) if self.shapes else 0

    def size(self, tensor: int) -> int:
        return math.prod(self.shapes[tensor])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The element after the last one of each tensor."""
        return tuple(offset + math.prod(shape) for offset, shape in zip(self.offsets, self.shapes, strict=True))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The uses that touch each tensor, ascending."""
        found: list[list[int]] = [[] for _ in self.shapes]
        for use, tensors in enumerate(self.uses):
            for tensor in dict.fromkeys(tensors):
                found[tensor].append(use)
        return tuple(map(tuple, found))

    @cached_property
    def first_uses(self) -> tuple[int, ...]:
        return tuple(users[0] for users in self.users)

    @cached_property
    def owned(self) -> list[int]:
        """How many elements of the line each use owns: the elements of the tensors that it is the first to use."""
        counts = [0] * len(self.uses)
        for tensor, use in enumerate(self.first_uses):
            counts[use] += self.size(tensor)
        return counts

    @property
    def owned_bytes(self) -> list[int]:
        return [owned * self.itemsize for owned in self.owned]

    def point(self, element: int) -> int:
        """The first element from this one on where a bucket may begin; the end of the line is one, too."""
        if self.whole:
            number = bisect_left(self.offsets, element)
            return self.offsets[number] if number < len(self.offsets) else self.count
        return min(round_up(element, self.grid), self.count)

    def begin(self, use: int) -> int:
        """Where the tensors that a use owns begin on the line."""
        return self.begins[use]

    @cached_property
    def begins(self) -> dict[int, int]:
        """Where the tensors of each owning use begin: its first tensor is entered last, and stays."""
        return dict(zip(reversed(self.first_uses), reversed(self.offsets), strict=True))

    def tensors(self, start: int, stop: int) -> list[int]:
        """The tensors of which an element lies between two elements of the line."""
        found = range(bisect_right(self.ends, start), bisect_left(self.offsets, stop))
        return [tensor for tensor in found if self.size(tensor)]
