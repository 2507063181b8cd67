"""Cut a program's transfers into messages, and order them: when each starts, is waited for and is merged.

Each chunk is divided into **blocks** of at most one segment. A message is a run of neighbouring blocks that fit in one
segment: large chunks are pipelined, and small chunks share a message.

    chunk 0                  chunk 1               chunk 2
    |block|block|block|bl|   |block|block|block|   |block|block|block|

Both ends cut a transfer alike. A collective may run in portions: some blocks of every chunk, equal on all ranks. Blocks
are independent, so portions in any order give the bits of the whole.

A **lane** is all messages of one direction between two ranks. A **side buffer** is a message's memory outside the
user's buffer. A receive is **merged** when its data is combined or copied from there into the buffer; receives of one
step into the same blocks are merged together. A send may start when its data is final: while segment k is added,
segment k+1 is sent.

[Note: Why instructions cannot deadlock]
A rank runs a fixed list of instructions "wait for these messages, merge, start those". Every message has a key (step,
number in its lane), equal at both ends. An instruction has a time, which is a key. It waits only for messages with keys
up to its time, and starts only messages with larger keys. Take the unfinished message with the smallest key. Everything
its two ends waited for before starting it has a smaller key, hence is finished. So both have started it, and it
completes even if sends are synchronous. The window only adds waits for earlier messages of the same lanes.

[Note: The window]
At most ``window`` messages per lane are posted: message m starts when message m - window is complete. Posting all
segments of a chunk makes MPI search long queues (64 MiB in 16 KiB segments: 80 times slower), and each posted receive
that combines needs a side buffer. ``window_of`` (``plans/tuning.py``) is larger between hosts.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from dear_mpi.collectives.program.program import Program, Receive, Send

T = TypeVar("T")


class Portion(NamedTuple):
    """Blocks of each chunk, split ``of`` ways, from border ``first`` to ``last``."""

    first: int
    last: int
    of: int

    def blocks(self, chunk: range) -> range:
        """
        >>> Portion(0, 1, 2).blocks(range(5, 10)), Portion(1, 2, 2).blocks(range(5, 10))
        (range(5, 7), range(7, 10))
        """
        first, last = (chunk.start + len(chunk) * border // self.of for border in (self.first, self.last))
        return range(first, last)


WHOLE = Portion(0, 1, 1)


@dataclass(frozen=True)
class Message:
    """Elements ``start`` to ``stop`` of the buffer, for one peer."""

    key: tuple[int, int]  # (step, number in its lane in the step), equal at both ends
    peer: int
    start: int
    stop: int
    blocks: range
    combine: bool
    incoming: bool


def messages(program: Program, chunks: Sequence[int], segment: int, portion: Portion = WHOLE) -> list[Message]:
    """Return a rank's messages by step, sends first, because they read old data.

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


WINDOW = 2

Key = tuple[int, int]
SideBuffer = tuple[int, bool, int]  # peer, incoming, number
BEGIN: Key = (-1, 0)


@dataclass(frozen=True)
class Instruction:
    """Wait for messages, merge receives, then start messages."""

    waits: tuple[int, ...]
    merges: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class InstructionList:
    """``side_buffers`` of messages in flight together differ."""

    messages: Sequence[Message]
    instructions: Sequence[Instruction]
    side_buffers: dict[int, SideBuffer]

    def __str__(self) -> str:
        """One line per instruction; messages by direction, step and number.

        >>> from dear_mpi.collectives.algorithms.registry import programs
        >>> print(write_instructions(messages(programs("ring", "reduce_scatter", 2)[0], chunks=(0, 3, 6), segment=1)))
        wait for -; merge -; start out 0.0, out 0.1, in 0.0, in 0.1
        wait for in 0.0; merge in 0.0; start -
        wait for out 0.0; merge -; start out 0.2, in 0.2
        wait for in 0.1; merge in 0.1; start -
        wait for in 0.2; merge in 0.2; start -
        wait for out 0.1, out 0.2; merge -; start -
        """
        names = [f"{'in' if each.incoming else 'out'} {each.key[0]}.{each.key[1]}" for each in self.messages]

        def named(numbers: Sequence[int]) -> str:
            return ", ".join(names[number] for number in numbers) or "-"

        return "\n".join(
            f"wait for {named(each.waits)}; merge {named(each.merges)}; start {named(each.starts)}"
            for each in self.instructions
        )


def write_instructions(messages: Sequence[Message], window: int = WINDOW, *, staged: bool = False) -> InstructionList:
    """Order one rank's messages; ``staged``: each has a side buffer."""
    writer = Writer(messages, window, staged=staged)
    return InstructionList(messages, list(writer.instructions()), writer.side_buffers)


@dataclass
class Version:
    """A block's content after a step: writers (receives), later readers (sends)."""

    step: int = -1
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)


class Writer:
    def __init__(self, messages: Sequence[Message], window: int, *, staged: bool) -> None:
        self.messages, self.window, self.staged = messages, window, staged
        self.blocks: dict[int, list[Version]] = defaultdict(lambda: [Version()])
        self.lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)  # (peer, incoming) -> messages so far
        self.side_buffers: dict[int, SideBuffer] = {}
        self.together: dict[object, list[int]] = defaultdict(list)
        for number, message in enumerate(messages):
            if message.incoming:
                self.together[self.place(number)].append(number)
        self.merge_time: dict[int, Key] = {}
        self.start_time: dict[int, Key] = {}
        # To complete before a message starts or, with a side buffer, is merged.
        self.after: dict[int, set[int]] = defaultdict(set)
        for number, message in enumerate(messages):
            (self.add_receive if message.incoming else self.add_send)(number, message)
            self.keep_lane(number, message)

    def place(self, number: int) -> object:
        message = self.messages[number]
        return (message.key[0], message.blocks.start) if message.combine else number

    def latest(self, numbers: Iterable[int]) -> Key:
        return max((self.merge_time.get(number, self.messages[number].key) for number in numbers), default=BEGIN)

    def add_send(self, number: int, message: Message) -> None:
        read = [self.blocks[block][-1] for block in message.blocks]
        for version in read:
            version.readers.add(number)
        self.start_time[number] = self.latest(set().union(*(version.writers for version in read)))
        if self.staged:
            self.side_buffers[number] = self.side_buffer(message)

    def side_buffer(self, message: Message) -> SideBuffer:
        """Reuse the buffer of the message ``window`` before in its lane."""
        lane = self.lanes[message.peer, message.incoming]
        return message.peer, message.incoming, len(lane) % self.window

    def add_receive(self, number: int, message: Message) -> None:
        """Receive into the buffer if no send still reads there, else into a side buffer."""
        blocks = [self.blocks[block] for block in message.blocks]
        for versions in blocks:  # receives of one step combine with the same data, in any order
            if versions[-1].step != message.key[0]:
                versions.append(Version(message.key[0]))
            versions[-1].writers.add(number)
        readers = set().union(*(before.readers for *_, before, _ in blocks))
        writers = set().union(*(before.writers for *_, before, _ in blocks))
        crossing = any(self.messages[reader].key[0] == message.key[0] for reader in readers)
        if message.combine or self.staged or crossing:
            arrived = max(self.messages[other].key for other in self.together[self.place(number)])
            self.merge_time[number] = max(arrived, self.latest(readers))
            # A side buffer is reused after its merge, so a late merge gets its own.
            late = self.merge_time[number] > message.key
            own = message.peer, True, self.window + number
            self.side_buffers[number] = own if late else self.side_buffer(message)
            self.start_time[number] = BEGIN
        else:
            self.start_time[number] = self.latest(readers | writers)
        self.after[number] = readers

    def keep_lane(self, number: int, message: Message) -> None:
        lane = self.lanes[message.peer, message.incoming]
        if lane:
            self.start_time[number] = max(self.start_time[number], self.start_time[lane[-1]])
        if len(lane) >= self.window:
            self.start_time[number] = max(self.start_time[number], self.messages[lane[-self.window]].key)
            if not message.incoming:
                self.after[number].add(lane[-self.window])
        lane.append(number)

    def instructions(self) -> Iterator[Instruction]:
        """Yield events by time: merges, then starts. No send is waited for twice.

        Sends start first, because a peer waits for them; receives are posted a window ahead.
        """
        events = [self.event(self.latest(group), group, starts=False) for group in self.together.values()]
        events += [self.event(time, [number], starts=True) for number, time in self.start_time.items()]
        left = {number for number, message in enumerate(self.messages) if not message.incoming}
        waits, merges, started = list[int](), list[int](), list[int]()
        for _, starts, *_, group in sorted(events):
            after = set().union(*(self.after[number] for number in group if (number in self.merge_time) != starts))
            fresh = sorted(after & left)
            left -= after
            if (fresh or not starts) and (waits or started):
                yield Instruction(tuple(waits), tuple(merges), tuple(started))
                waits, merges, started = [], [], []
            if starts:
                waits += fresh
                started += group
            else:
                waits += [*group, *fresh]
                merges += [number for number in group if number in self.side_buffers]
        if waits or started:
            yield Instruction(tuple(waits), tuple(merges), tuple(started))
        yield Instruction(tuple(sorted(left)), (), ())

    def event(self, time: Key, group: list[int], *, starts: bool) -> tuple[Key, bool, bool, Key, list[int]]:
        return time, starts, self.messages[group[0]].incoming, self.messages[group[0]].key, group
