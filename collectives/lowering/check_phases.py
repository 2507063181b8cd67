"""Prove what ranks do in each other's memory: run all of them, phase by phase, on symbols.

As in ``program/replay.py``, a symbol is the set of ranks whose contributions are in an element. In a phase the ranks
run in any order: nobody may touch what somebody else writes in it. Several runs follow each other, because between two
barriers a rank may still be in one run while another is in the next, and its caller writes new data into its buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from dear_mpi.collectives.lowering.phases import Memory, Move
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.replay import Row, ranks_in
from dear_mpi.collectives.program.verify import promised

__all__ = ["check_phases"]

RUNS = 4


def check_phases(collective: str, partition: Partition, written: Sequence[list[list[Move]]]) -> None:
    """See that all runs end with what the collective promises, whichever rank is faster.

    Args:
        written: the ``phases`` of each rank.

    Raises:
        ProgramError: naming the phase, the ranks, and the element.
    """
    state = State(collective, partition)
    for run in range(RUNS):
        state.turn = run % 2
        for number, of_ranks in enumerate(zip_longest(*written, fillvalue=None)):
            if number > 0:
                state.barrier()
            for rank, moves in enumerate(of_ranks):
                if moves is None:
                    raise ProgramError(f"rank {rank} has fewer phases than others: {len(written[rank])}")
                if number == 0:
                    state.fill(rank)
                for move in moves:
                    state.apply(rank, move, f"run {run}, phase {number}, rank {rank}")
        for rank in range(len(written)):
            state.check_end(rank)


class State:
    """What all memory holds, and who has touched it since the last barrier."""

    def __init__(self, collective: str, partition: Partition) -> None:
        self.contract, self.partition, self.turn = COLLECTIVES[collective], partition, 0
        self.expected = promised(collective, len(partition.counts))
        self.owners = [rank for rank, count in enumerate(partition.counts) for _ in range(count)]
        self.rows: dict[object, Row] = defaultdict(lambda: [0] * partition.count)
        self.barrier()

    def barrier(self) -> None:
        self.writers: dict[tuple[object, int], int] = {}
        self.readers: dict[tuple[object, int], set[int]] = defaultdict(set)

    def memory(self, memory: Memory) -> object:
        """A rank has two mailboxes, which runs use in turn."""
        return memory if memory[0] == "buffer" else (*memory, self.turn)

    def fill(self, rank: int) -> None:
        """The caller writes new data into its buffer."""
        begins = [1 << rank if self.contract.begins(rank, owner) else 0 for owner in self.owners]
        for element, mask in enumerate(begins):
            self.write(rank, ("buffer", rank), element, mask, f"the caller of rank {rank}")

    def apply(self, rank: int, move: Move, where: str) -> None:
        for element in move.part:
            total = 0
            for source in move.sources:
                mask = self.read(rank, source, element, where)
                if total & mask or not mask:
                    problem = f"combines {ranks_in(total & mask)} twice" if mask else "reads undefined data"
                    raise ProgramError(
                        f"{where}: {problem} in element {element} of the {source[0]} of rank {source[1]}"
                    )
                total |= mask
            self.write(rank, move.target, element, total, where)

    def read(self, rank: int, memory: Memory, element: int, where: str) -> int:
        cell = self.memory(memory), element
        if self.writers.get(cell, rank) != rank:
            raise ProgramError(race(where, "reads", memory, element, self.writers[cell]))
        self.readers[cell].add(rank)
        return self.rows[cell[0]][element]

    def write(self, rank: int, memory: Memory, element: int, mask: int, where: str) -> None:
        cell = self.memory(memory), element
        others = (self.readers[cell] | {self.writers.get(cell, rank)}) - {rank}
        if others:
            raise ProgramError(race(where, "writes", memory, element, min(others)))
        self.writers[cell] = rank
        self.rows[cell[0]][element] = mask

    def check_end(self, rank: int) -> None:
        """The caller reads the result."""
        for element, owner in enumerate(self.owners):
            if self.contract.ends(rank, owner):
                held = self.read(rank, ("buffer", rank), element, f"the caller of rank {rank}")
                if held != self.expected[owner]:
                    found, due = ranks_in(held), ranks_in(self.expected[owner])
                    raise ProgramError(f"rank {rank} ends with the data of {found} in element {element}, not of {due}")


def race(where: str, verb: str, memory: Memory, element: int, other: int) -> str:
    return f"{where}: {verb} element {element} of the {memory[0]} of rank {memory[1]}, which rank {other} may be using"
