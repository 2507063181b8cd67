"""Cut the transfers of a program into messages: what really crosses the wire for one buffer.

Each chunk is divided into cells of at most one segment. A message is a run of neighbouring cells that together
fit in one segment; so large chunks are pipelined, and small chunks that travel together share a message.

    chunk 0                  chunk 1               chunk 2
    |cell|cell|cell|ce|      |cell|cell|cell|      |cell|cell|cell|

Both ends of a transfer cut it in the same way, from the same numbers. An empty chunk has no cell and sends no
message. Dependencies are tracked by cell, not by chunk.

A collective may be carried out in portions: some cells of every chunk, the same on all ranks. What happens to a cell
depends on that cell alone, so portions may come in any order, with other collectives between them, and all of them
together give the same bits as the whole.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dear_mpi.collectives.program.program import Program, Receive, Send

T = TypeVar("T")


class Portion(NamedTuple):
    """The cells of each chunk, split ``of`` ways: from border ``first`` to border ``last``."""

    first: int
    last: int
    of: int

    def cells(self, chunk: range) -> range:
        """Those of a chunk.

        >>> Portion(0, 1, 2).cells(range(5, 10)), Portion(1, 2, 2).cells(range(5, 10))
        (range(5, 7), range(7, 10))
        """
        first, last = (chunk.start + len(chunk) * border // self.of for border in (self.first, self.last))
        return range(first, last)


WHOLE = Portion(0, 1, 1)


@dataclass(frozen=True)
class Message:
    """Elements ``start`` to ``stop`` of the buffer, on their way from or to one peer."""

    key: tuple[int, int]  # (step, number of the message between these two ranks in it): both ends agree on it
    peer: int
    start: int
    stop: int
    cells: range
    combine: bool
    incoming: bool

    def __str__(self) -> str:
        (step, number), verb = self.key, "receiving from" if self.incoming else "sending to"
        return f"step {step}, message {number}, {verb} rank {self.peer}"


def messages(program: Program, chunks: Sequence[int], segment: int, portion: Portion = WHOLE) -> list[Message]:
    """All messages of one rank, by step; in each step the sends, which read what the buffer held before, come first.

    Args:
        chunks: the borders between the chunks of the buffer, from 0 to its count (``Partition.chunks``).
        segment: the most elements in a message.
        portion: the cells that they are about.
    """
    grid = Grid(chunks, segment)
    found: list[Message] = []
    for number, step in enumerate(program.steps):
        numbering: dict[tuple[int, bool], Iterator[int]] = defaultdict(itertools.count)
        transfers: tuple[Send | Receive, ...] = (*step.sends, *step.receives)
        for transfer in transfers:
            incoming = isinstance(transfer, Receive)
            combine = isinstance(transfer, Receive) and transfer.combine
            numbers = numbering[transfer.peer, incoming]
            for cells in grid.runs(transfer.chunks, portion):
                start, stop = grid.borders[cells.start], grid.borders[cells.stop]
                found.append(Message((number, next(numbers)), transfer.peer, start, stop, cells, combine, incoming))
    return found


class Grid:
    def __init__(self, chunks: Sequence[int], segment: int) -> None:
        self.segment = segment
        self.borders: list[int] = []
        self.first_cell: list[int] = []  # of each chunk, and one more
        for start, stop in itertools.pairwise(chunks):
            self.first_cell.append(len(self.borders))
            self.borders.extend(range(start, stop, segment))
        self.first_cell.append(len(self.borders))
        self.borders.append(chunks[-1])

    def spread(self, of_chunks: Sequence[T]) -> list[T]:
        """What each chunk has, for each of its cells."""
        numbers = zip(of_chunks, itertools.pairwise(self.first_cell), strict=True)
        return [each for each, (start, stop) in numbers for _ in range(start, stop)]

    def runs(self, chunks: range, portion: Portion) -> Iterator[range]:
        """The cells of these chunks that are in the portion, as runs of neighbours that fit in a segment."""
        run = range(0)
        for chunk in chunks:
            for cell in portion.cells(range(self.first_cell[chunk], self.first_cell[chunk + 1])):
                if run and (cell > run.stop or self.borders[cell + 1] - self.borders[run.start] > self.segment):
                    yield run
                    run = range(0)
                run = range(run.start if run else cell, cell + 1)
        if run:
            yield run
