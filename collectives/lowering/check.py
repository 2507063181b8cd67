"""Prove the listings of all ranks, not only their programs: whole plans run on symbols, segment by segment.

``verify`` looks at steps; what runs is listings, in which the segments of many steps are under way at the same time.
Here each segment is one symbol, the set of ranks whose contributions are in it, and every message is synchronous. Found
are ranks that wait for ever; messages that meet another one's receive; a segment that changes while it is being sent,
or is sent while it is being received; a receive buffer that is used before it was emptied; and a wrong result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from dear_mpi.collectives.lowering.instructions import WINDOW, InstructionList, write_instructions
from dear_mpi.collectives.lowering.messages import messages
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.replay import Row, run

__all__ = ["check_instructions"]


def check_instructions(
    programs: Sequence[Program], segments: int, window: int = WINDOW, *, staged: bool = False
) -> None:
    """Run the listings of all ranks for a buffer whose chunks are cut into so many segments each.

    Raises:
        ProgramError: naming the rank, the step and the segment.
    """
    chunks = range(0, programs[0].chunks * segments + 1, segments)
    listings = [write_instructions(messages(program, chunks, 1), window, staged=staged) for program in programs]
    actors = [Actor(program, listing, segments) for program, listing in zip(programs, listings, strict=True)]
    lines: dict[tuple[int, int], Line] = defaultdict(Line)
    moved = True
    while moved:
        moved = any([actor.act(lines) for actor in actors])
        for line in lines.values():
            line.meet()
    ends = run(programs)
    for actor, runner in zip(actors, ends, strict=True):
        actor.check_end([mask for mask in runner.row for _ in range(segments)])


class Line:
    """The sends and receives between two ranks that are started and have not met yet."""

    def __init__(self) -> None:
        self.sends: deque[tuple[Actor, int, Row]] = deque()
        self.receives: deque[tuple[Actor, int]] = deque()

    def meet(self) -> None:
        """Carry out all messages whose ends are both started, in the order of their starts."""
        while self.sends and self.receives:
            sender, sent, data = self.sends.popleft()
            receiver, received = self.receives.popleft()
            if sender.listing.messages[sent].key != receiver.listing.messages[received].key:
                raise ProgramError(f"{receiver.where(received)}: meets what {sender.where(sent)} sends")
            if sent not in sender.listing.side_buffers and sender.held(sent) != data:
                raise ProgramError(f"{sender.where(sent)}: changes while it is being sent")
            receiver.land(received, data)
            sender.over.add(sent)
            receiver.over.add(received)


class Actor:
    """One rank on its way through its listing; ``row`` is what it holds of each segment."""

    def __init__(self, program: Program, listing: InstructionList, segments: int) -> None:
        begins = COLLECTIVES[program.collective].begins
        owners = [program.owner(chunk) for chunk in range(program.chunks) for _ in range(segments)]
        self.rank, self.listing, self.position = program.rank, listing, 0
        self.row: Row = [1 << self.rank if begins(self.rank, owner) else 0 for owner in owners]
        self.over: set[int] = set()
        self.arriving: set[int] = set()  # segments that a receive writes to
        self.side_buffers: dict[object, Row | None] = {}  # what has landed, or will land, and is not merged
        self.lifted: dict[object, int] = {}  # the last send from each side_buffer
        self.leaving: set[int] = set()  # sends out of the buffer that are not waited for yet
        self.waited: set[int] = set()

    def where(self, number: int) -> str:
        step, segment = self.listing.messages[number].key
        return f"rank {self.rank}, step {step}, segment {segment}"

    def held(self, number: int) -> Row:
        message = self.listing.messages[number]
        return [self.row[cell] for cell in message.cells]

    def act(self, lines: dict[tuple[int, int], Line]) -> bool:
        """Go through the listing as far as possible; whether there was anything to do."""
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
                self.start(number, lines)
            self.position += 1
        return self.position > begin

    def start(self, number: int, lines: dict[tuple[int, int], Line]) -> None:
        message, side_buffer = self.listing.messages[number], self.listing.side_buffers.get(number)
        if self.arriving.intersection(message.cells) and side_buffer is None:
            raise ProgramError(f"{self.where(number)}: is used while it is being received")
        if not message.incoming:
            before = self.lifted.get(side_buffer) if side_buffer is not None else None
            if before is not None and before not in self.waited:
                raise ProgramError(f"{self.where(number)}: leaves from where {self.where(before)} still does")
            if side_buffer is None:
                self.leaving.add(number)
            else:
                self.lifted[side_buffer] = number
            lines[self.rank, message.peer].sends.append((self, number, self.held(number)))
            return
        if side_buffer is None:
            self.check_left(number)
            self.arriving.update(message.cells)
        elif self.side_buffers.get(side_buffer) is not None:
            raise ProgramError(f"{self.where(number)}: lands where another message still is")
        else:
            self.side_buffers[side_buffer] = []
        lines[message.peer, self.rank].receives.append((self, number))

    def check_left(self, number: int) -> None:
        """Nothing that is about to be written is still being sent."""
        cells = set(self.listing.messages[number].cells)
        for other in self.leaving:
            if cells.intersection(self.listing.messages[other].cells):
                raise ProgramError(f"{self.where(number)}: overwrites what {self.where(other)} still sends")

    def land(self, number: int, data: Row) -> None:
        side_buffer = self.listing.side_buffers.get(number)
        if side_buffer is None:
            self.write(number, data)
        else:
            self.side_buffers[side_buffer] = data

    def write(self, number: int, data: Row) -> None:
        for cell, mask in zip(self.listing.messages[number].cells, data, strict=True):
            self.row[cell] = mask

    def merge(self, group: Sequence[int]) -> None:
        """Empty the receive buffer of receives that are merged together."""
        self.check_left(group[0])
        for number in group:
            message, side_buffer = self.listing.messages[number], self.listing.side_buffers[number]
            landed, self.side_buffers[side_buffer] = self.side_buffers[side_buffer], None
            if not landed:
                raise ProgramError(f"{self.where(number)}: is merged before it has landed")
            held = self.held(number) if message.combine else [0] * len(landed)
            if any(mask & other for mask, other in zip(landed, held, strict=True)):
                raise ProgramError(f"{self.where(number)}: is combined twice")
            self.write(number, [mask | other for mask, other in zip(landed, held, strict=True)])

    def check_end(self, expected: Row) -> None:
        """The listing is over, and left what its program says."""
        if self.position < len(self.listing.instructions):
            waits = [number for number in self.listing.instructions[self.position].waits if number not in self.over]
            raise ProgramError(f"{self.where(waits[0])}: waits for ever")
        if self.row != expected:
            segment = next(cell for cell, mask in enumerate(self.row) if mask != expected[cell])
            raise ProgramError(f"rank {self.rank} ends with the wrong data in segment {segment} of the buffer")
