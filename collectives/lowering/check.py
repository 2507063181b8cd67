"""Prove lowered programs by running them on symbols: the sets of ranks whose contributions are in an element.

Instructions keep messages of many steps in flight; here every send is synchronous. The proof finds deadlocks, sends
that meet another message's receive, memory used while an unfinished message needs it, and wrong results.

In a phase, ranks run in any order, so no rank may touch memory that another writes in it. Between two barriers one rank
may still be in a run while another has the next one's data, so several runs follow each other.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NoReturn

from dear_mpi.collectives.lowering.messages import (
    WHOLE,
    WINDOW,
    Grid,
    InstructionList,
    Portion,
    SideBuffer,
    messages,
    write_instructions,
)
from dear_mpi.collectives.lowering.phases import Move, Operand, Share
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Lane
from dear_mpi.collectives.program.program import COLLECTIVES, Program
from dear_mpi.collectives.program.verify import after_steps, data_of, promised, run

RUNS = 4

Place = int | tuple[SideBuffer, int]  # in the buffer or in a side buffer


def check_instructions(
    programs: Sequence[Program],
    chunks: Sequence[int],
    segment: int,
    *,
    window: int = WINDOW,
    staged: bool = False,
    portions: Sequence[Portion] = (WHOLE,),
    packed: float = math.inf,
) -> None:
    """Run all ranks' instructions by portion; a ProgramError names rank, step and message."""
    grid = Grid.of(programs[0], chunks, segment)
    held = [dict[Place, int](enumerate(grid.spread(row))) for row in next(after_steps(programs))]
    for portion in portions:
        cut = [messages(program, chunks, segment, portion, packed) for program in programs]
        listings = [write_instructions(each, window, staged=staged) for each in cut]
        ranks = [SymbolicRank(*each) for each in zip(range(len(programs)), listings, held, strict=True)]
        lanes: Lanes = defaultdict(Lane)
        while any([rank.walk(lanes) for rank in ranks]):
            for lane in lanes.values():
                meet(lane)
        for rank in ranks:
            rank.check_over()
    for number, row in enumerate(run(programs)):
        for block, mask in enumerate(grid.spread(row)):
            if held[number][block] != mask:
                raise ProgramError(f"rank {number}: block {block} of the buffer ends with the wrong data")


class SymbolicRank:
    def __init__(self, rank: int, listing: InstructionList, held: dict[Place, int]) -> None:
        self.rank, self.listing, self.held, self.position = rank, listing, held, 0
        self.over: set[int] = set()
        self.waited: set[int] = set()
        self.users: dict[Place, set[int]] = defaultdict(set)  # messages that are incomplete or not merged
        self.places: list[Sequence[Place]] = [message.blocks for message in listing.messages]
        for number, side in listing.side_buffers.items():
            self.places[number] = [(side, at) for at in range(len(self.places[number]))]
        for number, source in listing.sources.items():
            self.places[number] = self.places[source]

    def where(self, number: int) -> str:
        step, count = self.listing.messages[number].key
        return f"rank {self.rank}, step {step}, message {count}"

    def fail(self, number: int, problem: str) -> NoReturn:
        raise ProgramError(f"{self.where(number)}: {problem}")

    def walk(self, lanes: "Lanes") -> bool:
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
        message, places = self.listing.messages[number], self.places[number]
        if message.incoming:
            self.check_free(number, places, writes=True)
            lanes[message.peer, self.rank].receives.append((self, number))
        else:
            if number in self.listing.side_buffers:
                self.move(number, message.blocks, places, [False] * len(places))
            self.check_free(number, places, writes=False)
            if not message.own:
                lanes[self.rank, message.peer].sends.append((self, number))
        for place in places:
            self.users[place].add(number)

    def release(self, number: int) -> None:
        for place in self.places[number]:
            self.users[place].discard(number)

    def merge(self, number: int) -> None:
        source = self.listing.sources.get(number, number)
        if source == number and number not in self.waited:
            self.fail(number, "is merged before it has arrived")
        self.release(source)
        message = self.listing.messages[number]
        combined = [run.combine for run in message.runs for _ in run.blocks]
        self.move(number, self.places[number], message.blocks, combined)

    def move(self, number: int, sources: Sequence[Place], targets: Sequence[Place], combined: Iterable[bool]) -> None:
        self.check_free(number, sources, writes=False)
        self.check_free(number, targets, writes=True)
        arriving = [self.held.get(source, 0) for source in sources]  # scratch may be undefined
        for mask, target, combine in zip(arriving, targets, combined, strict=True):
            before = self.held[target] if combine else 0
            if before & mask:
                self.fail(number, "is combined twice")
            self.held[target] = before | mask

    def check_free(self, number: int, places: Sequence[Place], *, writes: bool) -> None:
        for place in places:
            for other in self.users[place]:
                if writes or self.listing.messages[other].incoming:
                    self.fail(number, f"needs memory that {self.where(other)} still uses")

    def check_over(self) -> None:
        if self.position < len(self.listing.instructions):
            waits = [n for n in self.listing.instructions[self.position].waits if n not in self.over]
            self.fail(waits[0], "never completes: its peer also waits for this rank")


End = tuple[SymbolicRank, int]  # one end of a message: its rank and number
Lanes = dict[tuple[int, int], Lane[End, End]]  # by sender and receiver


def meet(lane: Lane[End, End]) -> None:
    for (sender, sent), (receiver, received) in lane.meetings():
        if sender.listing.messages[sent].key != receiver.listing.messages[received].key:
            receiver.fail(received, f"meets what {sender.where(sent)} sends")
        data = [sender.held[place] for place in sender.places[sent]]
        receiver.held.update(zip(receiver.places[received], data, strict=True))
        sender.over.add(sent)
        receiver.over.add(received)


def check_phases(collective: str, share: Share, written: Sequence[list[list[Move]]]) -> None:
    """Check all runs; a ProgramError names run, phase, ranks and element."""
    fewest = min(written, key=len)
    if len(fewest) < len(max(written, key=len)):
        raise ProgramError(f"rank {written.index(fewest)} has {len(fewest)} phases; another rank has more")
    memory = SymbolicMemory(collective, share)
    for turn in range(RUNS):
        memory.fill(turn)
        for number in range(len(fewest)):
            if number > 0:
                memory.users.clear()
            for rank, of_rank in enumerate(written):
                for move in of_rank[number]:
                    memory.apply(rank, move, f"run {turn}, phase {number}, rank {rank}")
        memory.check_end()


class SymbolicMemory:
    def __init__(self, collective: str, share: Share) -> None:
        self.contract, self.share, self.run = COLLECTIVES[collective], share, 0
        self.expected = promised(collective, len(share.ranks))[0]
        owners = [rank for rank, count in enumerate(share.partition.counts) for _ in range(count)]
        self.places = [(rank, element, owner) for rank in share.ranks for element, owner in enumerate(owners)]
        self.held: dict[object, tuple[int, ...]] = {}  # content, element, run
        self.users: dict[object, set[tuple[int, bool]]] = defaultdict(set)  # rank, whether it wrote

    def place(self, memory: Operand, element: int) -> object:
        if memory[0] == "mailbox":
            element = self.share.in_mailbox(range(element, element + 1), self.run).start
        return memory, element

    def fill(self, run: int) -> None:
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
                    twice = f"combines {data_of(total & mask, len(self.share.ranks))} twice"
                    problem = twice if mask else "reads undefined data"
                    raise ProgramError(f"{where}: {problem} in element {element} of {source[0]} {source[1]}")
                total |= mask
            self.write(rank, move.target, element, total, where)

    def read(self, rank: int, memory: Operand, element: int, where: str) -> int:
        mask, *since = self.held.get(self.use(rank, memory, element, where, writes=False), (0,))
        return mask if since == [element, self.run] else 0  # another block's or run's

    def write(self, rank: int, memory: Operand, element: int, mask: int, where: str) -> None:
        self.held[self.use(rank, memory, element, where, writes=True)] = mask, element, self.run

    def use(self, rank: int, memory: Operand, element: int, where: str, *, writes: bool) -> object:
        place = self.place(memory, element)
        for other, wrote in self.users[place]:
            if other != rank and (writes or wrote):
                used = f"{'writes' if writes else 'reads'} element {element} of {memory[0]} {memory[1]}"
                raise ProgramError(f"{where}: {used}, which rank {other} may be using")
        self.users[place].add((rank, writes))
        return place

    def check_end(self) -> None:
        for rank, element, owner in self.places:
            if self.contract.ends(rank, owner):
                held = self.read(rank, ("buffer", rank), element, f"the caller of rank {rank}")
                if held != self.expected[owner]:
                    size = len(self.share.ranks)
                    found = f"ends with {data_of(held, size)}" if held else "is still empty"
                    due = f"expected {data_of(self.expected[owner], size)}"
                    raise ProgramError(f"rank {rank}: element {element} {found}; {due}")
