"""Fill buffers with small whole numbers that have an exact result and differ by rank, element and turn.

Element i is ``pattern(i + turn)``, of a periodic pattern: filling is one copy, checking one comparison of bits. In
all_gather, broadcast, gather and scatter all ranks share a pattern; elements that are not sent have the next turn's.
Expected patterns are rows: one, or one for each chunk of an all_to_all.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
from ml_dtypes import finfo, iinfo

from dear_mpi.bench.case import Case
from dear_mpi.collectives.program.program import chunk_bounds, the_owner
from dear_mpi.kernels import reference
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import TYPES, compute_dtype, is_floating
from dear_mpi.ranks.streams import Streams
from dear_mpi.ranks.world import World

PERIOD = 31  # prime: chunks begin at different values
# All whole numbers below are exact.
EXACT = {
    name: 2 ** (finfo(dtype).nmant + 1) if is_floating(dtype) else int(iinfo(dtype).max)  # type: ignore[no-untyped-call]
    for name, dtype in TYPES.items()
}
COMBINE: dict[str, Any] = {"sum": np.sum, "average": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


class Data:
    """A call's arrays on this rank, ``x`` and ``out`` (None in place), at page boundaries: memcpy is slow for some."""

    def __init__(self, case: Case, world: World, streams: Streams, memory: str) -> None:
        self.memory, count, rank, ranks = memory, case.count, world.rank, world.size
        dtype, window = TYPES[case.dtype], case.window
        begins, ends, in_x, in_out = parts_of(case, rank, ranks)
        allocate = world.transport.allocate if memory == "shared" else reference.allocate

        def zeros(part: slice, times: int = 1) -> Array:
            array = allocate((part.stop - part.start) * times * dtype.itemsize)
            array[...] = 0
            return streams.put(array).view(dtype)

        self.x = zeros(in_x)
        self.out = zeros(in_out, window) if case.placement == "out" else None
        bits, (values, rows) = f"u{dtype.itemsize}", patterns(case, rank, ranks)
        mine = streams.put(np.resize(values.view(bits), count + PERIOD + 1))
        width = count // len(rows) + PERIOD + 1
        expected = streams.put(np.stack([np.resize(row.view(bits), width) for row in rows]))
        self.mine, self.expected = mine[begins.start :], expected[:, ends.start :]
        self.others = mine[in_x.start + 1 :]  # elements of other ranks
        self.all, self.given = self.x.view(bits), self.x.view(bits)[within(begins, in_x)]
        if self.out is None:
            result = self.all[within(ends, in_x)]
        else:
            found = within(ends, in_out)
            result = self.out.view(bits)[found.start : found.stop * window]
        self.result = result.reshape(max(len(rows), window), -1)
        self.count_nonzero = array_module(self.x).count_nonzero

    def fill(self, turn: int) -> None:
        shift = turn % PERIOD
        if self.given.size < self.all.size:
            self.all[...] = self.others[shift:][: self.all.size]
        self.given[...] = self.mine[shift:][: self.given.size]

    def clear(self) -> None:
        """Write zeros, which combining keeps."""
        self.all[...] = 0

    def errors(self, turn: int) -> int:
        due = self.expected[:, turn % PERIOD :][:, : self.result.shape[1]]
        # Row by row: 64 messages of 16 MiB at once would allocate 256 MiB.
        return sum(int(self.count_nonzero(row != exact)) for row, exact in zip(self.result, cycle(due)))


def parts_of(case: Case, rank: int, ranks: int) -> tuple[slice, slice, slice, slice]:
    """Return the elements that a rank begins with, ends with, and stores in ``x`` and in ``out``."""
    operation, whole, none = case.operation, slice(0, case.count), slice(0, 0)
    if (contract := operation.contract) is None:
        brings = whole if any(operation.source(other, ranks) == rank for other in range(ranks)) else none
        ends = none if operation.source(rank, ranks) is None else whole
        return brings, ends, brings, ends
    begins, ends = (extent(holder, rank, ranks, case.count) for holder in (contract.begins, contract.ends))
    shard, apart = slice(*chunk_bounds(case.count, ranks, rank)), case.placement == "out"
    x = shard if apart and contract.begins is the_owner else whole
    return begins, ends, x, shard if apart and contract.ends is the_owner else whole


def extent(holder: Callable[[int, int], bool], rank: int, ranks: int, count: int) -> slice:
    """Return a rank's elements at start or end: all, its shard, or none."""
    bounds = [chunk_bounds(count, ranks, owner) for owner in range(ranks) if holder(rank, owner)]
    return slice(bounds[0][0], bounds[-1][1]) if bounds else slice(0, 0)


def within(part: slice, whole: slice) -> slice:
    """Convert a part of the buffer to a slice of an array of a larger part."""
    return slice(part.start - whole.start, part.stop - whole.start) if part.stop > part.start else slice(0, 0)


def patterns(case: Case, rank: int, ranks: int) -> tuple[Array, Array]:
    """Return one period of this rank's values, and of each row of the result."""
    dtype, places = TYPES[case.dtype], np.arange(PERIOD**2)
    operation = case.operation
    if operation.addressed or operation.contract is None:
        others = np.arange(ranks)[:, None]
        rows = (((others + 1) * places + places // PERIOD + others // PERIOD) % PERIOD).astype(dtype)
        if operation.addressed:
            return rows[rank], np.roll(rows, -rank * (case.count // ranks), axis=1)
        return rows[rank], rows[[operation.source(rank, ranks) or 0]]
    if not case.reduces:
        values = np.arange(PERIOD).astype(dtype)
        return values, values[None]
    rows = np.array([contribution(case, other, ranks) for other in range(ranks)])
    expected = COMBINE[case.op](rows, axis=0).astype(dtype)
    if case.op == "average":
        wide = compute_dtype(dtype).type
        expected = (expected.astype(wide) * wide(1 / ranks)).astype(dtype)
    return rows[rank].astype(dtype), expected[None]


def contribution(case: Case, rank: int, ranks: int) -> Array:
    """Return a rank's values; in a product all factors but one are 1."""
    if case.op == "prod":
        places = np.arange(PERIOD * ranks)
        return np.where(places % ranks == rank, 1 + places % PERIOD, 1)
    return (np.arange(PERIOD) + 7 * rank) % PERIOD % values_below(case, ranks)


def values_below(case: Case, ranks: int) -> int:
    return PERIOD if case.op in ("min", "max") else min(PERIOD, EXACT[case.dtype] // ranks + 1)


def check_exact(case: Case, ranks: int) -> None:
    """Raise a ValueError: sums are inexact in this type, or an average of integers."""
    if case.reduces and case.op == "average" and not is_floating(TYPES[case.dtype]):
        raise ValueError(f"op 'average' needs a floating dtype, not {case.dtype!r}: take 'sum'")
    if case.reduces and case.op != "prod" and values_below(case, ranks) < 2:
        raise ValueError(f"dtype {case.dtype!r} has no exact sums over {ranks} ranks: take another one, or op max")
