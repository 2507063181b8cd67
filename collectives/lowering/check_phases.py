"""Prove what ranks do in each other's memory: run all of them, phase by phase, on symbols.

As in ``program/verify.py``, a symbol is the set of ranks whose contributions are in an element. In a phase the ranks
run in any order: so no rank may touch what another one writes in that phase. Several runs follow each other, because
between two barriers a rank may still be in one run while another is in the next, whose caller has written new data into
its buffer.
"""

from collections import defaultdict
from collections.abc import Sequence

from dear_mpi.collectives.lowering.phases import Move, Operand, Share
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.program.verify import promised, ranks_in

RUNS = 4


def check_phases(collective: str, share: Share, written: Sequence[list[list[Move]]]) -> None:
    """See that all runs end with what the collective promises, whichever rank is faster.

    Args:
        share: of any rank: where mailboxes have which element.
        written: the ``phases`` of each rank.

    A ProgramError names the run, the phase, the ranks, and the element.
    """
    fewest = min(written, key=len)
    if len(fewest) < len(max(written, key=len)):
        raise ProgramError(f"rank {written.index(fewest)} has fewer phases than others: {len(fewest)}")
    state = State(collective, share)
    for run in range(RUNS):
        state.fill(run)
        for number in range(len(fewest)):
            if number > 0:
                state.users.clear()  # a barrier
            for rank, of_rank in enumerate(written):
                for move in of_rank[number]:
                    state.apply(rank, move, f"run {run}, phase {number}, rank {rank}")
        state.check_end()


class State:
    """What all memory holds, element by element, and which ranks have used it since the last barrier."""

    def __init__(self, collective: str, share: Share) -> None:
        self.contract, self.share, self.run = COLLECTIVES[collective], share, 0
        self.expected = promised(collective, len(share.ranks))[0]  # the same for all ranks
        owners = [rank for rank, count in enumerate(share.partition.counts) for _ in range(count)]
        self.places = [(rank, element, owner) for rank in share.ranks for element, owner in enumerate(owners)]
        self.held: dict[object, tuple[int, ...]] = {}  # what is in it; of which element, since which run
        self.users: dict[object, set[tuple[int, bool]]] = defaultdict(set)  # ranks, and whether they have written

    def cell(self, memory: Operand, element: int) -> object:
        """An element of a buffer, or the place in a mailbox that has it in this run."""
        if memory[0] == "mailbox":
            element = self.share.in_mailbox(range(element, element + 1), self.run).start
        return memory, element

    def fill(self, run: int) -> None:
        """A run begins: callers write new data into their buffers."""
        self.run = run
        for rank, element, owner in self.places:
            mask = self.contract.brings(rank, owner, len(self.share.ranks))
            self.write(rank, ("buffer", rank), element, mask, f"the caller of rank {rank}")

    def apply(self, rank: int, move: Move, where: str) -> None:
        for element in move.elements:
            total = 0
            for source in move.sources:
                mask = self.read(rank, source, element, where)
                if total & mask or not mask:
                    problem = f"combines {ranks_in(total & mask)} twice" if mask else "reads undefined data"
                    raise ProgramError(f"{where}: {problem} in element {element} of {source[0]} {source[1]}")
                total |= mask
            self.write(rank, move.target, element, total, where)

    def read(self, rank: int, memory: Operand, element: int, where: str) -> int:
        mask, *since = self.held.get(self.use(rank, memory, element, where, writes=False), (0,))
        return mask if since == [element, self.run] else 0  # what another block or run left there is of no use

    def write(self, rank: int, memory: Operand, element: int, mask: int, where: str) -> None:
        self.held[self.use(rank, memory, element, where, writes=True)] = mask, element, self.run

    def use(self, rank: int, memory: Operand, element: int, where: str, *, writes: bool) -> object:
        """The place of an element, which no other rank writes, nor reads if this one writes."""
        cell = self.cell(memory, element)
        for other, wrote in self.users[cell]:
            if other != rank and (writes or wrote):
                used = f"{'writes' if writes else 'reads'} element {element} of {memory[0]} {memory[1]}"
                raise ProgramError(f"{where}: {used}, which rank {other} may be using")
        self.users[cell].add((rank, writes))
        return cell

    def check_end(self) -> None:
        for rank, element, owner in self.places:
            if self.contract.ends(rank, owner):
                held = self.read(rank, ("buffer", rank), element, f"the caller of rank {rank}")
                if held != self.expected[owner]:
                    due = f"{ranks_in(held)} in element {element}, not of {ranks_in(self.expected[owner])}"
                    raise ProgramError(f"rank {rank} ends with the data of {due}")
