"""Lay out trained parameters in a flat buffer, in the order of first call, and cut it into buckets.

    calls     0: embedding         1: block           2: head, tied to the embedding
    buffer    | tokens | positions |.| weight | bias |................|
              ^ offsets: each tensor begins on 16 bytes              ^ count: a multiple of the grid
    buckets   |      0       |     1      :   |  2                    |
                                          ^ a border is put on the next point of the grid

A **layer call** is one run of a layer in the forward pass. A shared tensor appears once, at its first call. Buckets are
cut on a **grid** of ranks x 128 bytes: shards can be equal and share no cache line. A bucket's first call completes its
gradients, and needs it first in the next forward pass. Borders are rounded up: no layer waits for a second bucket
first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dear_mpi.kernels.slab import CHUNK_BYTES, TENSOR_BYTES, round_up

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Map tensors to the flat buffer; offsets, counts and the grid are in elements.

    Attributes:
        calls: the tensors of each layer call, in forward order.
        grid: buckets begin and end at its multiples; with ``whole``, tensors begin there, each on 128 bytes.
        itemsize: bytes per element of travelling gradients.
    """

    shapes: tuple[Shape, ...]
    offsets: tuple[int, ...]
    calls: tuple[tuple[int, ...], ...]
    grid: int
    itemsize: int
    whole: bool = False

    @classmethod
    def of(
        cls,
        calls: Iterable[Sequence[tuple[Hashable, Shape]]],
        *,
        itemsize: int,
        ranks: int,
        value_size: int | None = None,
        whole: bool = False,
    ) -> Layout:
        """Lay out the tensors of all layer calls.

        Args:
            calls: each layer call's tensors: a key, equal for tied ones, and a shape.
            value_size: bytes per element of values, if unlike gradients'.

        >>> layout = Layout.of([[("tokens", (3,))], [], [("head", (2, 2)), ("tokens", (3,))]], itemsize=4, ranks=2)
        >>> layout.offsets, layout.calls, layout.grid, layout.count
        ((0, 4), ((0,), (), (1, 0)), 64, 64)
        """
        numbers: dict[Hashable, int] = {}
        shapes: list[Shape] = []
        touched = []
        for tensors in calls:
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
        return round_up(self.ends[-1], self.grid) if self.shapes else 0

    def size(self, tensor: int) -> int:
        return math.prod(self.shapes[tensor])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        return tuple(offset + math.prod(shape) for offset, shape in zip(self.offsets, self.shapes, strict=True))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.shapes]
        for call, tensors in enumerate(self.calls):
            for tensor in dict.fromkeys(tensors):
                found[tensor].append(call)
        return tuple(map(tuple, found))

    @cached_property
    def first_calls(self) -> tuple[int, ...]:
        return tuple(users[0] for users in self.users)

    @cached_property
    def owned(self) -> list[int]:
        """Count elements by owning (first) layer call."""
        counts = [0] * len(self.calls)
        for tensor, call in enumerate(self.first_calls):
            counts[call] += self.size(tensor)
        return counts

    @property
    def owned_bytes(self) -> list[int]:
        return [owned * self.itemsize for owned in self.owned]

    def point(self, element: int) -> int:
        """Return the first possible border from an element on; the buffer's end is one."""
        if self.whole:
            number = bisect_left(self.offsets, element)
            return self.offsets[number] if number < len(self.offsets) else self.count
        return min(round_up(element, self.grid), self.count)

    def begin(self, call: int) -> int:
        return self.begins[call]

    @cached_property
    def begins(self) -> dict[int, int]:
        """Map owning layer calls to their first element; a call's first tensor is entered last, and stays."""
        return dict(zip(reversed(self.first_calls), reversed(self.offsets), strict=True))

    def tensors(self, start: int, stop: int) -> list[int]:
        found = range(bisect_right(self.ends, start), bisect_left(self.offsets, stop))
        return [tensor for tensor in found if self.size(tensor)]


@dataclass(frozen=True)
class Bucket:
    """Hold elements ``start`` to ``stop`` of the flat buffer.

    Attributes:
        index: its number.
        calls: layer calls that touch it, ascending; ``calls[0]`` completes its gradients.
        nbytes: its size as it travels.
        shapes: of its tensors, if whole.
    """

    index: int
    start: int
    stop: int
    calls: tuple[int, ...]
    nbytes: int
    shapes: tuple[Shape, ...] = ()

    def __hash__(self) -> int:
        return self.index  # unique on a buffer; ``calls`` may be long

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.stop

    @cached_property
    def name(self) -> str:
        return f"bucket {self.index} (layers {self.calls[0]}..{self.calls[-1]}, {self.nbytes} bytes)"

    def __str__(self) -> str:
        return self.name


class Cut(tuple[Bucket, ...]):
    def needed_by(self, call: int) -> Sequence[Bucket]:
        return self.of_calls.get(call, ())

    def completed_by(self, call: int) -> Sequence[Bucket]:
        """List buckets that a layer call's backward completes, last first."""
        return self.begun_by.get(call, ())

    @cached_property
    def of_calls(self) -> dict[int, list[Bucket]]:
        found: dict[int, list[Bucket]] = {}
        for bucket in self:
            for call in bucket.calls:
                found.setdefault(call, []).append(bucket)
        return found

    @cached_property
    def begun_by(self) -> dict[int, list[Bucket]]:
        return {call: [one for one in reversed(own) if one.calls[0] == call] for call, own in self.of_calls.items()}


def cut(layout: Layout, borders: Iterable[int]) -> Cut:
    """Cut the flat buffer at borders in any order, each rounded up to the grid.

    >>> layout = Layout.of([[("a", (9,))], [("b", (100,))]], itemsize=4, ranks=2)
    >>> [str(bucket) for bucket in cut(layout, [layout.begin(1)])]
    ['bucket 0 (layers 0..1, 256 bytes)', 'bucket 1 (layers 1..1, 256 bytes)']
    """
    points = sorted({0, layout.count, *map(layout.point, borders)})
    buckets = []
    for index, (start, stop) in enumerate(pairwise(points)):
        tensors = layout.tensors(start, stop)
        calls = sorted({call for tensor in tensors for call in layout.users[tensor]})
        shapes = tuple(layout.shapes[tensor] for tensor in tensors) if layout.whole else ()
        buckets.append(Bucket(index, start, stop, tuple(calls), (stop - start) * layout.itemsize, shapes))
    return Cut(buckets)
