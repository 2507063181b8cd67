"""Prove the instruction lists of all ranks, as ``verify`` proves their programs: run them on symbols.

``verify`` looks at steps. What runs is instructions, in which the messages of many steps are under way at the same
time. Here a symbol stands for each cell: the set of ranks whose contributions are in it; and every send is synchronous.
What is found: ranks that block each other; a send that meets the receive of another message; a cell that changes while
it is sent, or is sent while it is received; a side buffer that is used again before it was emptied; a wrong result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NoReturn

from dear_mpi.collectives.lowering.instructions import WINDOW, InstructionList, write_instructions
from dear_mpi.collectives.lowering.messages import WHOLE, Grid, Portion, messages
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.replay import Row, run


def check_instructions(
    programs: Sequence[Program],
    chunks: Sequence[int],
    segment: int,
    *,
    window: int = WINDOW,
    staged: bool = False,
    portions: Sequence[Portion] = (WHOLE,),
) -> None:
    """Run the instruction lists of all ranks for one buffer, portion after portion; arguments as when it is lowered.

    Raises:
        ProgramError: naming the rank, the step and the message.
    """
    grid = Grid(chunks, segment)
    cells = [stop - start for start, stop in zip(grid.first_cell, grid.first_cell[1:], strict=False)]
    rows = [initial(program, cells) for program in programs]
    for portion in portions:
        cut = [messages(program, chunks, segment, portion) for program in programs]
        listings = [write_instructions(each, window, staged=staged) for each in cut]
        ranks = [SymbolicRank(*each) for each in zip(range(len(programs)), listings, rows, strict=True)]
        lanes: Lanes = defaultdict(Lane)
        while any([rank.walk(lanes) for rank in ranks]):
            for lane in lanes.values():
                meet(lane)
        for rank in ranks:
            rank.check_over()
    for number, (row, replayed) in enumerate(zip(rows, run(programs), strict=True)):
        expected = [mask for mask, count in zip(replayed.row, cells, strict=True) for _ in range(count)]
        if row != expected:
            cell = next(cell for cell, mask in enumerate(row) if mask != expected[cell])
            raise ProgramError(f"rank {number} ends with the wrong data in cell {cell} of the buffer")


def initial(program: Program, cells: Sequence[int]) -> Row:
    """What a rank holds at first of each cell."""
    begins, rank = COLLECTIVES[program.collective].begins, program.rank
    owners = [program.owner(chunk) for chunk, count in enumerate(cells) for _ in range(count)]
    return [1 << rank if begins(rank, owner) else 0 for owner in owners]


def meet(lane: Lane[Sent, Received]) -> None:
    """Carry out all messages whose two ends are started."""
    for (sender, sent, data), (receiver, received) in lane.meetings():
        if sender.listing.messages[sent].key != receiver.listing.messages[received].key:
            receiver.fail(received, f"meets what {sender.where(sent)} sends")
        if sent not in sender.listing.side_buffers and sender.held(sent) != data:
            sender.fail(sent, "changes while it is being sent")
        receiver.store(received, data)
        sender.over.add(sent)
        receiver.over.add(received)


class SymbolicRank:
    """One rank on its way through its instructions; ``row`` is what it holds of each cell."""

    def __init__(self, rank: int, listing: InstructionList, row: Row) -> None:
        self.rank, self.listing, self.position, self.row = rank, listing, 0, row
        self.over: set[int] = set()
        self.waited: set[int] = set()
        self.arriving: set[int] = set()  # cells that a receive writes to
        self.leaving: set[int] = set()  # sends out of the buffer that are not waited for yet
        self.received: dict[object, Row | None] = {}  # what is in a side buffer, or will be, and is not merged
        self.lifted: dict[object, int] = {}  # the last send from each side buffer

    def where(self, number: int) -> str:
        """A message, for errors."""
        step, count = self.listing.messages[number].key
        return f"rank {self.rank}, step {step}, message {count}"

    def fail(self, number: int, problem: str) -> NoReturn:
        raise ProgramError(f"{self.where(number)}: {problem}")

    def held(self, number: int) -> Row:
        """What is in the buffer where a message comes from or goes to."""
        return [self.row[cell] for cell in self.listing.messages[number].cells]

    def walk(self, lanes: Lanes) -> bool:
        """Go through the instructions as far as possible; whether there was anything to do."""
        begin, instructions = self.position, self.listing.instructions
        while self.position < len(instructions) and self.over.issuperset(instructions[self.position].waits):
            instruction = instructions[self.position]
            self.waited.update(instruction.waits)
            self.leaving.difference_update(instruction.waits)
            for number in instruction.waits:
                self.arriving.difference_update(self.listing.messages[number].cells)
            if instruction.merges:
                self.merge(instruction.merges)
            for number in instruction.starts:
                self.start(number, lanes)
            self.position += 1
        return self.position > begin

    def start(self, number: int, lanes: Lanes) -> None:
        """Post a message."""
        message, side = self.listing.messages[number], self.listing.side_buffers.get(number)
        if side is None and self.arriving.intersection(message.cells):
            self.fail(number, "is used while it is being received")
        if message.incoming:
            self.make_room(number, side)
            lanes[message.peer, self.rank].receives.append((self, number))
        else:
            self.lift(number, side)
            lanes[self.rank, message.peer].sends.append((self, number, self.held(number)))

    def lift(self, number: int, side: object) -> None:
        """A send occupies its cells, or its side buffer."""
        if side is None:
            self.leaving.add(number)
            return
        before = self.lifted.get(side)
        if before is not None and before not in self.waited:
            self.fail(number, f"is sent from the side buffer of {self.where(before)}, which is not over")
        self.lifted[side] = number

    def make_room(self, number: int, side: object) -> None:
        """A receive occupies its cells, or its side buffer."""
        if side is None:
            self.check_left(number)
            self.arriving.update(self.listing.messages[number].cells)
        elif self.received.get(side) is not None:
            self.fail(number, "is received into a side buffer in use")
        else:
            self.received[side] = []

    def check_left(self, number: int) -> None:
        """Nothing that is about to be written is still being sent."""
        cells = set(self.listing.messages[number].cells)
        for other in self.leaving:
            if cells.intersection(self.listing.messages[other].cells):
                self.fail(number, f"overwrites what {self.where(other)} still sends")

    def store(self, number: int, data: Row) -> None:
        """A message has arrived."""
        side = self.listing.side_buffers.get(number)
        if side is None:
            self.write(number, data)
        else:
            self.received[side] = data

    def write(self, number: int, data: Row) -> None:
        for cell, mask in zip(self.listing.messages[number].cells, data, strict=True):
            self.row[cell] = mask

    def merge(self, group: Sequence[int]) -> None:
        """Empty the side buffers of receives that are merged at once."""
        self.check_left(group[0])
        for number in group:
            side = self.listing.side_buffers[number]
            arrived, self.received[side] = self.received[side], None
            if not arrived:
                self.fail(number, "is merged before it has arrived")
            held = self.held(number) if self.listing.messages[number].combine else [0] * len(arrived)
            if any(mask & other for mask, other in zip(arrived, held, strict=True)):
                self.fail(number, "is combined twice")
            self.write(number, [mask | other for mask, other in zip(arrived, held, strict=True)])

    def check_over(self) -> None:
        """The instructions are over."""
        if self.position < len(self.listing.instructions):
            waits = [n for n in self.listing.instructions[self.position].waits if n not in self.over]
            self.fail(waits[0], "is waited for in vain")


Sent = tuple[SymbolicRank, int, Row]  # the sender, the number of its message, and what that held
Received = tuple[SymbolicRank, int]
Lanes = dict[tuple[int, int], Lane[Sent, Received]]  # by sender and receiver
