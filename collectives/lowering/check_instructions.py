"""Prove the instruction lists of all ranks, as ``verify`` proves their programs: run them on symbols.

``verify`` looks at steps. What runs is instructions, in which the messages of many steps are under way at the same
time. A symbol is the set of ranks whose contributions are in a cell; every send is synchronous. What is found: ranks
that block each other; a send that meets the receive of another message; memory that is used while a message that is
not over, or not merged, needs it; a wrong result.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NoReturn

from dear_mpi.collectives.lowering.instructions import WINDOW, InstructionList, SideBuffer, write_instructions
from dear_mpi.collectives.lowering.messages import WHOLE, Grid, Portion, messages
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.verify import after_steps, run

Place = int | tuple[SideBuffer, int]  # a cell of the buffer, or one of a side buffer


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

    A ProgramError names the rank, the step and the message.
    """
    grid = Grid(chunks, segment)
    held = [dict[Place, int](enumerate(grid.spread(row))) for row in next(after_steps(programs))]
    for portion in portions:
        cut = [messages(program, chunks, segment, portion) for program in programs]
        listings = [write_instructions(each, window, staged=staged) for each in cut]
        ranks = [SymbolicRank(*each) for each in zip(range(len(programs)), listings, held, strict=True)]
        lanes: Lanes = defaultdict(Lane)
        while any([rank.walk(lanes) for rank in ranks]):
            for lane in lanes.values():
                meet(lane)
        for rank in ranks:
            rank.check_over()
    for number, row in enumerate(run(programs)):
        for cell, mask in enumerate(grid.spread(row)):
            if held[number][cell] != mask:
                raise ProgramError(f"rank {number} ends with the wrong data in cell {cell} of the buffer")


class SymbolicRank:
    """One rank on its way through its instructions; ``held`` is what each place holds."""

    def __init__(self, rank: int, listing: InstructionList, held: dict[Place, int]) -> None:
        self.rank, self.listing, self.held, self.position = rank, listing, held, 0
        self.over: set[int] = set()
        self.waited: set[int] = set()
        self.users: dict[Place, set[int]] = defaultdict(set)  # messages that are not waited for, or not merged
        # Where each message is sent from, or received into.
        self.places: list[Sequence[Place]] = [message.cells for message in listing.messages]
        for number, side in listing.side_buffers.items():
            self.places[number] = [(side, at) for at in range(len(self.places[number]))]

    def where(self, number: int) -> str:
        step, count = self.listing.messages[number].key
        return f"rank {self.rank}, step {step}, message {count}"

    def fail(self, number: int, problem: str) -> NoReturn:
        raise ProgramError(f"{self.where(number)}: {problem}")

    def walk(self, lanes: "Lanes") -> bool:
        """Go through the instructions as far as possible; whether there was anything to do."""
        begin, instructions = self.position, self.listing.instructions
        while self.position < len(instructions) and self.over.issuperset(instructions[self.position].waits):
            instruction = instructions[self.position]
            self.waited.update(instruction.waits)
            for number in instruction.waits:
                if not (self.listing.messages[number].incoming and number in self.listing.side_buffers):
                    self.release(number)
            for number in instruction.merges:
                self.merge(number)
            for number in instruction.starts:
                self.start(number, lanes)
            self.position += 1
        return self.position > begin

    def start(self, number: int, lanes: "Lanes") -> None:
        """Post a message, which uses its places from now on."""
        message, places = self.listing.messages[number], self.places[number]
        if message.incoming:
            self.check_free(number, places, writes=True)
            lanes[message.peer, self.rank].receives.append((self, number))
        else:
            if number in self.listing.side_buffers:
                self.move(number, message.cells, places)
            self.check_free(number, places, writes=False)
            lanes[self.rank, message.peer].sends.append((self, number))
        for place in places:
            self.users[place].add(number)

    def release(self, number: int) -> None:
        for place in self.places[number]:
            self.users[place].discard(number)

    def merge(self, number: int) -> None:
        """Empty the side buffer of a receive."""
        if number not in self.waited:
            self.fail(number, "is merged before it has arrived")
        self.release(number)
        message = self.listing.messages[number]
        self.move(number, self.places[number], message.cells, combine=message.combine)

    def move(self, number: int, sources: Sequence[Place], targets: Sequence[Place], *, combine: bool = False) -> None:
        """Copy what a message carries between the buffer and a side buffer, or combine it with what is there."""
        self.check_free(number, sources, writes=False)
        self.check_free(number, targets, writes=True)
        for source, target in zip(sources, targets, strict=True):
            before = self.held[target] if combine else 0
            if before & self.held[source]:
                self.fail(number, "is combined twice")
            self.held[target] = before | self.held[source]

    def check_free(self, number: int, places: Sequence[Place], *, writes: bool) -> None:
        """No message that is under way needs these places as they are, or is about to change them."""
        for place in places:
            for other in self.users[place]:
                if writes or self.listing.messages[other].incoming:
                    self.fail(number, f"needs memory that {self.where(other)} still uses")

    def check_over(self) -> None:
        if self.position < len(self.listing.instructions):
            waits = [n for n in self.listing.instructions[self.position].waits if n not in self.over]
            self.fail(waits[0], "is waited for in vain")


End = tuple[SymbolicRank, int]  # one end of a message: its rank, and its number there
Lanes = dict[tuple[int, int], Lane[End, End]]  # by sender and receiver


def meet(lane: Lane[End, End]) -> None:
    """Carry out all messages whose two ends are started."""
    for (sender, sent), (receiver, received) in lane.meetings():
        if sender.listing.messages[sent].key != receiver.listing.messages[received].key:
            receiver.fail(received, f"meets what {sender.where(sent)} sends")
        data = [sender.held[place] for place in sender.places[sent]]
        receiver.held.update(zip(receiver.places[received], data, strict=True))
        sender.over.add(sent)
        receiver.over.add(received)
