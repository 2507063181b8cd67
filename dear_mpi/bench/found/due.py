"""What a program's messages and steps should bring, in the numbers of ``data.py``.

``collectives/program/verify.py`` says whose contributions a chunk has after each step; what is due there is what these
ranks bring, combined.

Partial sums of that data are exact, like whole ones, so the order in which an algorithm adds makes no difference.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

import numpy as np

from dear_mpi.bench.case import Case
from dear_mpi.bench.data import COMBINE, PERIOD, patterns
from dear_mpi.collectives.lowering.messages import Message
from dear_mpi.collectives.plans.checked import ARRIVED, SENT
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.replay import Row, after_steps, members
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES


class Due:
    """What is due on one rank. ``chunks`` are the borders of the buffer's chunks; ``factor`` is what a plan multiplies
    contributions by before its first step."""

    def __init__(
        self, case: Case, programs: Sequence[Program], rank: int, *, chunks: Sequence[int], factor: float
    ) -> None:
        self.chunks, self.parts, self.size = chunks, programs[0].parts, len(programs)
        self.combine, self.dtype = COMBINE[case.op], TYPES[case.dtype]
        self.brought = list[Array]()  # one period of it, by each rank
        for other in range(self.size):
            self.brought.append(patterns(case, other, self.size)[0] * self.dtype.type(factor))
        self.held = list[Row]()  # by this rank, before each step and at the end
        self.of_peers = list[dict[int, Row]]()  # what those hold at a step's begin whose data it combines
        for number, rows in enumerate(after_steps(programs)):
            self.held.append(list(rows[rank]))
            receives = programs[rank].steps[number].receives if number < len(programs[rank].steps) else ()
            self.of_peers.append({each.peer: list(rows[each.peer]) for each in receives if each.combine})
        self.values = cache(self.values_of)

    def at(self, point: int, message: Message, turn: int) -> Array:
        """The elements of a message at a point of its step (``collectives/plans/checked.py``)."""
        step = message.key[0]
        row = self.held[step + (point != SENT)]
        if point == ARRIVED and message.combine:
            row = self.of_peers[step][message.peer]
        found, start = [], message.start
        while start < message.stop:
            chunk = self.chunk_at(start)
            stop = min(message.stop, self.chunks[chunk + 1])
            found.append(self.within(row[chunk], chunk, range(start, stop), turn))
            start = stop
        return np.concatenate(found) if found else np.empty(0, self.dtype)

    def chunk_at(self, element: int) -> int:
        return bisect_right(self.chunks, element) - 1

    def within(self, mask: int, chunk: int, elements: range, turn: int) -> Array:
        """Elements of a chunk that holds what ``mask`` says."""
        start, (address, ranks) = elements.start, divmod(mask, 1 << self.size)
        if address:  # where on its source this data was, in the chunk for its address
            source = members(address)[0] * self.parts + chunk % self.parts
            start += self.chunks[source] - self.chunks[chunk]
        values = self.values(ranks)
        found: Array = np.resize(np.roll(values, -((start + turn % PERIOD) % len(values))), len(elements))
        return found

    def values_of(self, ranks: int) -> Array:
        """One period of what these ranks bring, combined."""
        found = [self.brought[rank] for rank in members(ranks)]
        if len(found) == 1:
            return found[0]
        wide = np.array(found).astype(np.float64 if self.dtype.kind not in "iu" else self.dtype)
        combined: Array = self.combine(wide, axis=0).astype(self.dtype)
        return combined
