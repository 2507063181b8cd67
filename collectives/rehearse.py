"""Prove the scripts of all ranks, not only their programs: whole plans run on symbols, segment by segment.

``verify`` looks at steps; what runs is scripts, in which the segments of many steps are under way at the same time.
Here each segment is one symbol, the set of ranks whose contributions are in it, and every message is synchronous. Found
are ranks that wait for ever; messages that meet another one's receive; a segment that changes while it is being sent,
or is sent while it is being received; a landing place that is used before it was emptied; and a wrong result.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from dear_mpi.collectives.contract import COLLECTIVES
from dear_mpi.collectives.errors import ProgramError
from dear_mpi.collectives.messages import messages
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.replay import Row, run
from dear_mpi.collectives.script import WINDOW, Script, write_script

__all__ = ["rehearse"]


def rehearse(programs: Sequence[Program], segments: int, window: int = WINDOW, *, staged: bool = False) -> None:
    """Run the scripts of all ranks for a buffer whose chunks are cut into so many segments each.

    Raises:
        ProgramError: naming the rank, the step and the segment.
    """
    chunks = range(0, programs[0].chunks * segments + 1, segments)
    scripts = [write_script(messages(program, chunks, 1), window, staged=staged) for program in programs]
    actors = [Actor(program, script, segments) for program, script in zip(programs, scripts, strict=True)]
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
            if sender.script.messages[sent].key != receiver.script.messages[received].key:
                raise ProgramError(f"{receiver.place(received)}: meets what {sender.place(sent)} sends")
            if sent not in sender.script.slots and sender.held(sent) != data:
                raise ProgramError(f"{sender.place(sent)}: changes while it is being sent")
            receiver.land(received, data)
            sender.over.add(sent)
            receiver.over.add(received)


class Actor:
    """One rank on its way through its script; ``row`` is what it holds of each segment."""

    def __init__(self, program: Program, script: Script, segments: int) -> None:
        begins = COLLECTIVES[program.collective].begins
        owners = [program.owner(chunk) for chunk in range(program.chunks) for _ in range(segments)]
        self.rank, self.script, self.position = program.rank, script, 0
        self.row: Row = [1 << self.rank if begins(self.rank, owner) else 0 for owner in owners]
        self.over: set[int] = set()
        self.arriving: set[int] = set()  # segments that a receive writes to
        self.slots: dict[object, Row | None] = {}  # what has landed, or will land, and is not folded in
        self.lifted: dict[object, int] = {}  # the last send from each slot
        self.leaving: set[int] = set()  # sends out of the buffer that are not waited for yet
        self.waited: set[int] = set()

    def place(self, number: int) -> str:
        step, segment = self.script.messages[number].key
        return f"rank {self.rank}, step {step}, segment {segment}"

    def held(self, number: int) -> Row:
        message = self.script.messages[number]
        return [self.row[cell] for cell in message.cells]

    def act(self, lines: dict[tuple[int, int], Line]) -> bool:
        """Go through the script as far as possible; whether there was anything to do."""
        begin, entries = self.position, self.script.entries
        while self.position < len(entries) and self.over.issuperset(entries[self.position].waits):
            entry = entries[self.position]
            self.waited.update(entry.waits)
            self.leaving.difference_update(entry.waits)
            for number in entry.waits:
                self.arriving.difference_update(self.script.messages[number].cells)
            if entry.folds:
                self.fold(entry.folds)
            for number in entry.starts:
                self.start(number, lines)
            self.position += 1
        return self.position > begin

    def start(self, number: int, lines: dict[tuple[int, int], Line]) -> None:
        message, slot = self.script.messages[number], self.script.slots.get(number)
        if self.arriving.intersection(message.cells) and slot is None:
            raise ProgramError(f"{self.place(number)}: is used while it is being received")
        if not message.incoming:
            before = self.lifted.get(slot) if slot is not None else None
            if before is not None and before not in self.waited:
                raise ProgramError(f"{self.place(number)}: leaves from where {self.place(before)} still does")
            if slot is None:
                self.leaving.add(number)
            else:
                self.lifted[slot] = number
            lines[self.rank, message.peer].sends.append((self, number, self.held(number)))
            return
        if slot is None:
            self.check_left(number)
            self.arriving.update(message.cells)
        elif self.slots.get(slot) is not None:
            raise ProgramError(f"{self.place(number)}: lands where another message still is")
        else:
            self.slots[slot] = []
        lines[message.peer, self.rank].receives.append((self, number))

    def check_left(self, number: int) -> None:
        """Nothing that is about to be written is still being sent."""
        cells = set(self.script.messages[number].cells)
        for other in self.leaving:
            if cells.intersection(self.script.messages[other].cells):
                raise ProgramError(f"{self.place(number)}: overwrites what {self.place(other)} still sends")

    def land(self, number: int, data: Row) -> None:
        slot = self.script.slots.get(number)
        if slot is None:
            self.write(number, data)
        else:
            self.slots[slot] = data

    def write(self, number: int, data: Row) -> None:
        for cell, mask in zip(self.script.messages[number].cells, data, strict=True):
            self.row[cell] = mask

    def fold(self, group: Sequence[int]) -> None:
        """Empty the landing places of receives that are folded in together."""
        self.check_left(group[0])
        for number in group:
            message, slot = self.script.messages[number], self.script.slots[number]
            landed, self.slots[slot] = self.slots[slot], None
            if not landed:
                raise ProgramError(f"{self.place(number)}: is folded in before it has landed")
            held = self.held(number) if message.combine else [0] * len(landed)
            if any(mask & other for mask, other in zip(landed, held, strict=True)):
                raise ProgramError(f"{self.place(number)}: is combined twice")
            self.write(number, [mask | other for mask, other in zip(landed, held, strict=True)])

    def check_end(self, expected: Row) -> None:
        """The script is over, and left what its program says."""
        if self.position < len(self.script.entries):
            waits = [number for number in self.script.entries[self.position].waits if number not in self.over]
            raise ProgramError(f"{self.place(waits[0])}: waits for ever")
        if self.row != expected:
            segment = next(cell for cell, mask in enumerate(self.row) if mask != expected[cell])
            raise ProgramError(f"rank {self.rank} ends with the wrong data in segment {segment} of the buffer")
