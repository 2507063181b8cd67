"""Cut a program's transfers into the messages for one buffer.

Each chunk is divided into blocks of at most one segment. A message is a run of neighbouring blocks that fit in one
segment. So large chunks are pipelined, and small chunks share a message.

    chunk 0                  chunk 1               chunk 2
    |block|block|block|bl|   |block|block|block|   |block|block|block|

Both ends cut a transfer in the same way. An empty chunk sends no message.

A collective may run in portions: some blocks of every chunk, equal on all ranks. Blocks are independent, so portions
may run in any order, with other collectives between them, and give the bits of the whole.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dear_mpi.collectives.program.program import Program, Receive, Send

T = TypeVar("T")


class Portion(NamedTuple):
    """Blocks of each chunk, split ``of`` ways, from border ``first`` to border ``last``."""

    first: int
    last: int
    of: int

    def blocks(self, chunk: range) -> range:
        """Return the portion of a chunk.

        >>> Portion(0, 1, 2).blocks(range(5, 10)), Portion(1, 2, 2).blocks(range(5, 10))
        (range(5, 7), range(7, 10))
        """
        first, last = (chunk.start + len(chunk) * border // self.of for border in (self.first, self.last))
        return range(first, last)


WHOLE = Portion(0, 1, 1)


@dataclass(frozen=True)
class Message:
    """Elements ``start`` to ``stop`` of the buffer, sent to or received from one peer."""

    key: tuple[int, int]  # (step, number between these ranks in the step), equal at both ends
    peer: int
    start: int
    stop: int
    blocks: range
    combine: bool
    incoming: bool


def messages(program: Program, chunks: Sequence[int], segment: int, portion: Portion = WHOLE) -> list[Message]:
    """Return a rank's messages by step; in a step sends come first, because they read the old data.

    ``chunks`` are borders (``Partition.chunks``); a message has at most ``segment`` elements.
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
            for blocks in grid.runs(transfer.chunks, portion):
                start, stop = grid.borders[blocks.start], grid.borders[blocks.stop]
                found.append(Message((number, next(numbers)), transfer.peer, start, stop, blocks, combine, incoming))
    return found


class Grid:
    """The borders of all blocks."""

    def __init__(self, chunks: Sequence[int], segment: int) -> None:
        self.segment = segment
        self.borders: list[int] = []
        self.first_block: list[int] = []
        for start, stop in itertools.pairwise(chunks):
            self.first_block.append(len(self.borders))
            self.borders.extend(range(start, stop, segment))
        self.first_block.append(len(self.borders))
        self.borders.append(chunks[-1])

    def spread(self, of_chunks: Sequence[T]) -> list[T]:
        numbers = zip(of_chunks, itertools.pairwise(self.first_block), strict=True)
        return [each for each, (start, stop) in numbers for _ in range(start, stop)]

    def runs(self, chunks: range, portion: Portion) -> Iterator[range]:
        run = range(0)
        for chunk in chunks:
            for block in portion.blocks(range(self.first_block[chunk], self.first_block[chunk + 1])):
                if run and (block > run.stop or self.borders[block + 1] - self.borders[run.start] > self.segment):
                    yield run
                    run = range(0)
                run = range(run.start if run else block, block + 1)
        if run:
            yield run
