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

import hashlib
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.launch_tables import address
from dear_mpi.kernels.slab import CHUNK_BYTES, TENSOR_BYTES, round_up
from dear_mpi.models.layer import Layer, Parameter

Shape = tuple[int, ...]
Call: TypeAlias = Callable[[], object]
READ = 1 << 18  # elements compared at a time


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
        """Count the elements that each layer call owns; a tensor's first call owns it."""
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


def flat_dtype(layers: Sequence[Layer]) -> np.dtype[Any]:
    """Return trained parameters' widest type; ValueError: no element."""
    parameters = [parameter for layer in layers for parameter in trained(layer)]
    if not any(parameter.value.size for parameter in parameters):
        raise ValueError("a model must have a parameter that is trained, with an element")
    found = {parameter.value.dtype: parameter.name for parameter in parameters}
    for dtype, name in found.items():
        if dtype not in DTYPES.values():
            raise ValueError(f"parameter {name} must have one of the types {', '.join(DTYPES)}, not {dtype}")
    wide = [dtype for dtype in found if dtype.itemsize > 2]
    return np.result_type(*wide) if wide else next(iter(found)) if len(found) == 1 else DTYPES["fp32"]


def trained(layer: Layer) -> list[Parameter]:
    """List trained parameters; ValueError for a duplicate, or a value that is no array."""
    found = [parameter for parameter in layer.parameters if parameter.trained]
    for parameter in found:
        if not hasattr(parameter.value, "strides") or not hasattr(parameter.value, "flags"):
            raise ValueError(f"the value of parameter {parameter.name} must be an array, not {parameter.value!r}")
        if found.count(parameter) > 1:
            raise ValueError(f"parameter {parameter.name} is listed twice in a layer ({type(layer).__name__})")
    return found


def of_tensors(calls: Sequence[Layer], layout: Layout) -> list[Parameter]:
    found: dict[int, Parameter] = {}
    for layer, tensors in zip(calls, layout.calls, strict=True):
        for parameter, tensor in zip(trained(layer), tensors, strict=True):
            found.setdefault(tensor, parameter)
    return list(found.values())


def layout_of(calls: Sequence[Layer], wire: np.dtype[Any], ranks: int, *, whole: bool = False) -> Layout:
    """Lay out layers in forward order; parameters in the same memory are tied.

    ValueError if they share only a part of it.
    """
    check_overlaps(calls)
    keys = [[(key_of(parameter), parameter.value.shape) for parameter in trained(layer)] for layer in calls]
    return Layout.of(keys, itemsize=wire.itemsize, ranks=ranks, value_size=flat_dtype(calls).itemsize, whole=whole)


def key_of(parameter: Parameter) -> tuple[Any, ...]:
    """Return a key that tied parameters share; an empty parameter equals only itself."""
    value = parameter.value
    return (*bounds(value), value.nbytes, value.strides) if value.size else (id(parameter),)


def check_overlaps(layers: Sequence[Layer]) -> None:
    """Check that parameters share all or none of their memory; tied ones are all trained or all frozen."""
    spans = {
        (*key_of(each), each.trained): (each.value, f"{each.name} of layer {number} ({type(layer).__name__})")
        for number, layer in enumerate(layers)
        for each in layer.parameters
        if each.value.size
    }
    reaching: list[tuple[int, Array, str]] = []  # earlier ones that end after this one's start
    for (start, end, *_), (other, name) in sorted(spans.items(), key=lambda item: item[0]):
        reaching = [each for each in reaching if each[0] > start]
        for _, array, owner in reaching:
            # On the host, strided views may interleave.
            if not isinstance(array, np.ndarray) or np.shares_memory(array, other):
                what = "tied parameters must share all of it, in the same shape, and be trained, both or neither"
                raise ValueError(f"{owner} and {name} share a part of their memory: {what}")
        reaching.append((end, other, name))


def bounds(array: Array) -> tuple[int, int]:
    start = array.ctypes.data if isinstance(array, np.ndarray) else address(array)
    steps = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


def held(array: Array) -> bool:
    """Tell whether code other than the caller holds a host array's memory."""
    root = array if array.base is None else array.base
    own = 4 if array.base is None else 3  # names here and in the caller, and the argument
    return isinstance(root, np.ndarray) and array.flags.writeable and sys.getrefcount(root) > own


def readers(buffer: Array, own: Array) -> list[Call]:
    """Return calls that copy an owner's in-place changes to the flat buffer.

    In a narrower type, an unchanged value equals the buffer's, rounded; the buffer keeps its more exact one.
    """
    if buffer.dtype == own.dtype:
        return [copier(buffer, own)]
    xp: Any = array_module(buffer)
    rounded, wide = (xp.empty(min(buffer.size, READ), array.dtype) for array in (own, buffer))
    bits = np.dtype(f"u{own.itemsize}")

    def reader(start: int) -> Call:
        theirs, mine = own[start : start + READ], buffer[start : start + READ]
        down, up = copier(rounded[: theirs.size], mine), copier(wide[: theirs.size], theirs)

        def read() -> None:
            down()
            up()
            changed = rounded[: theirs.size].view(bits) != theirs.view(bits)
            xp.copyto(mine, wide[: theirs.size], where=changed)

        return read

    return [reader(start) for start in range(0, buffer.size, READ)]


def sha256(arrays: Iterable[Array]) -> str:
    """Return the SHA-256 of the bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(to_host(array)).view("u1").data)
    return digest.hexdigest()
