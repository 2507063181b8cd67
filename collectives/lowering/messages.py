"""Cut a program's transfers into messages, and order them: when each starts, is waited for and is merged.

Each chunk is divided into **blocks** of at most one segment. A **run** is a range of neighbouring blocks of a transfer
that fit in one segment: large chunks are pipelined, and small chunks share a run.

    chunk 0                  chunk 1               chunk 2
    |block|block|block|bl|   |block|block|block|   |block|block|block|

A message is a run, or several small runs of one step between the same ranks: these are packed. Both ends cut a transfer
alike. A collective may run in portions: some blocks of every chunk, equal on all ranks. Blocks are independent, so
portions in any order give the bits of the whole.

A **lane** is all messages of one direction between two ranks. A **side buffer** is a message's memory outside the
user's buffer. A receive is **merged** when its data is combined or copied from there into the buffer; receives of one
step into the same blocks are merged together. A send may start when its data is final: while segment k is added,
segment k+1 is sent. A rank's transfers to itself send no message: the receive is merged straight from the buffer, or
from a side buffer if the step overwrites it.

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
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from dear_mpi.collectives.program.program import Program, Receive, Send, by_peer

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


class Run(NamedTuple):
    """Elements ``start`` to ``stop`` of the buffer, which scratch follows."""

    blocks: range
    start: int
    stop: int
    combine: bool

    @property
    def length(self) -> int:
        return self.stop - self.start


class Message(NamedTuple):
    """Runs for one peer; with ``own``, for the rank itself."""

    key: tuple[int, int]  # (step, number in its lane in the step), equal at both ends
    peer: int
    runs: Sequence[Run]
    blocks: Sequence[int]
    combine: bool  # some of them
    incoming: bool
    own: bool

    @property
    def length(self) -> int:
        return sum([run.length for run in self.runs])


def messages(
    program: Program, chunks: Sequence[int], segment: int, portion: Portion = WHOLE, packed: float = math.inf
) -> list[Message]:
    """Return a rank's messages by step, sends first, because they read old data.

    ``chunks`` are borders (``Partition.chunks``); a message has at most ``segment`` elements. ``packed``: see ``pack``.
    """
    grid = Grid.of(program, chunks, segment)
    found: list[Message] = []
    for number, step in enumerate(program.steps):
        for incoming, transfers in ((False, step.sends), (True, step.receives)):
            for peer, lane in by_peer(transfers).items():
                own = peer == program.rank
                runs = [run for transfer in lane for run in grid.runs(transfer, portion)]
                packs = [runs] if len(runs) == 1 else pack(runs, segment, packed)
                for count, each in enumerate(packs):
                    whole = each if own or len(each) == 1 else joined(each, chunks[-1])
                    blocks = whole[0].blocks if len(whole) == 1 else [block for run in whole for block in run.blocks]
                    combine = whole[0].combine or any(run.combine for run in whole[1:])
                    found.append(Message((number, count), peer, whole, blocks, combine, incoming, own))
    return found


def pack(runs: Sequence[Run], segment: int, saved: float) -> Iterator[Sequence[Run]]:
    """Put neighbours in a message as long as they fit into a segment, if that pays.

    Packing copies all elements twice. Packing k runs saves k - 1 messages, worth ``saved`` elements each, minus 3/4 of
    one for the longer message.

    >>> runs = [Run(range(n), 0, n, False) for n in (1, 3, 2, 2, 4, 1)]
    >>> [[run.stop for run in each] for each in pack(runs, segment=5, saved=16)]
    [[1, 3], [2, 2], [4], [1]]
    """
    group, length = list[Run](), 0
    for run in (*runs, None):
        if group and (run is None or length + run.length > segment):
            yield from [group] if length <= saved * (len(group) - 1.75) else [[each] for each in group]
            group, length = [], 0
        if run is not None:
            group.append(run)
            length += run.length


def joined(runs: Iterable[Run], count: int) -> list[Run]:
    """Join runs that follow each other in the buffer, or in scratch, unless they are combined."""
    found = list[Run]()
    for run in runs:
        last = found[-1] if found else run
        if last.blocks.stop == run.blocks.start and run.start != count and not (last.combine or run.combine):
            found[-1] = Run(range(last.blocks.start, run.blocks.stop), last.start, run.stop, combine=False)
        else:
            found.append(run)
    return found


class Grid:
    @classmethod
    def of(cls, program: Program, chunks: Sequence[int], segment: int) -> "Grid":
        """Cut the buffer, and the copies in scratch, which follow it."""
        count, copies = chunks[-1], 1 + program.scratch
        borders = (copy * count + border for copy in range(copies) for border in chunks[:-1])
        return cls([*borders, copies * count], segment)

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

    def runs(self, transfer: Send | Receive, portion: Portion) -> Iterator[Run]:
        run, combine = range(0), isinstance(transfer, Receive) and transfer.combine
        for chunk in transfer.chunks:
            for block in portion.blocks(range(self.first_block[chunk], self.first_block[chunk + 1])):
                if run and (block > run.stop or self.borders[block + 1] - self.borders[run.start] > self.segment):
                    yield Run(run, self.borders[run.start], self.borders[run.stop], combine)
                    run = range(0)
                run = range(run.start if run else block, block + 1)
        if run:
            yield Run(run, self.borders[run.start], self.borders[run.stop], combine)


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
    """``side_buffers`` of messages in flight together differ. ``sources``: the rank's own sends, by receive."""

    messages: Sequence[Message]
    instructions: Sequence[Instruction]
    side_buffers: dict[int, SideBuffer]
    sources: dict[int, int]

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
    return InstructionList(messages, list(writer.instructions()), writer.side_buffers, writer.sources)


@dataclass
class Version:
    """A block's content after a step: writers (receives), later readers (sends)."""

    step: int = -1
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)


def together(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Group receives with runs that are combined into the same blocks, in ascending order, by each of them."""
    groups, firsts = dict[int, list[int]](), dict[tuple[int, int], int]()
    for number, message in enumerate(messages):
        if message.incoming:
            groups[number] = [number]
            for run in (run for run in message.runs if run.combine):
                other = groups[firsts.setdefault((message.key[0], run.blocks.start), number)]
                if other is not groups[number]:
                    both = sorted(other + groups[number])
                    groups.update(dict.fromkeys(both, both))
    return groups


class Writer:
    def __init__(self, messages: Sequence[Message], window: int, *, staged: bool) -> None:
        self.messages, self.window, self.staged = messages, window, staged
        self.blocks: dict[int, list[Version]] = defaultdict(lambda: [Version()])
        self.lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)  # (peer, incoming) -> messages so far
        self.side_buffers: dict[int, SideBuffer] = {}
        self.together = together(messages)
        self.merge_time: dict[int, Key] = {}
        self.start_time: dict[int, Key] = {}
        # Sends that must complete before a message starts or, with a side buffer, is merged.
        self.after: dict[int, set[int]] = defaultdict(set)
        own = {message.key: number for number, message in enumerate(messages) if message.own and not message.incoming}
        self.sources = {n: own[message.key] for n, message in enumerate(messages) if message.own and message.incoming}
        self.written = {(each.key[0], block) for each in messages if own and each.incoming for block in each.blocks}
        for number, message in enumerate(messages):
            (self.add_receive if message.incoming else self.add_send)(number, message)
            if not message.own:
                self.keep_lane(number, message)

    def latest(self, numbers: Iterable[int]) -> Key:
        return max((self.merge_time.get(number, self.messages[number].key) for number in numbers), default=BEGIN)

    def add_send(self, number: int, message: Message) -> None:
        read = [self.blocks[block][-1] for block in message.blocks]
        for version in read:
            version.readers.add(number)
        begin = self.latest(set().union(*(version.writers for version in read)))
        if not message.own:
            self.start_time[number] = begin
            if self.staged or len(message.runs) > 1:
                self.side_buffers[number] = self.side_buffer(message)
        elif any((message.key[0], block) in self.written for block in message.blocks):
            self.start_time[number] = begin  # the data is copied before this step overwrites it
            self.side_buffers[number] = message.peer, False, number

    def side_buffer(self, message: Message) -> SideBuffer:
        """Reuse the buffer of the message ``window`` before in its lane."""
        lane = self.lanes[message.peer, message.incoming]
        return message.peer, message.incoming, len(lane) % self.window

    def add_receive(self, number: int, message: Message) -> None:
        """Receive a run into the buffer if no send still reads there, else into a side buffer."""
        before = self.before(message)
        for block in message.blocks:  # receives of one step combine with the same data, in any order
            versions = self.blocks[block]
            if versions[-1].step != message.key[0]:
                versions.append(Version(message.key[0]))
            versions[-1].writers.add(number)
        readers = set().union(*(version.readers for version in before))
        self.after[number] = readers
        crossing = any(self.messages[reader].key[0] == message.key[0] for reader in readers)
        if not (message.combine or self.staged or crossing or len(message.runs) > 1 or message.own):
            self.start_time[number] = self.latest(readers.union(*(version.writers for version in before)))
            return
        group = self.together[number]
        if group[0] == number:
            if len(group) > 1:
                earlier = (version for each in group for version in self.before(self.messages[each]))
                readers = set().union(*(version.readers for version in earlier))
            arrived = max(self.messages[each].key for each in group)
            self.merge_time |= dict.fromkeys(group, max(arrived, self.latest(readers)))
        if message.own:
            source = self.sources[number]
            if source not in self.side_buffers:  # read until then
                self.merge_time[source] = self.merge_time[number]
            return
        # A side buffer is reused after its merge, so a late merge gets its own.
        late = self.merge_time[number] > message.key
        own = message.peer, True, self.window + number
        self.side_buffers[number] = own if late else self.side_buffer(message)
        self.start_time[number] = BEGIN

    def before(self, message: Message) -> list[Version]:
        """Return what a message's blocks held before its step."""
        step, versions = message.key[0], [self.blocks[block] for block in message.blocks]
        return [each[-2] if each[-1].step == step else each[-1] for each in versions]

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
        groups = [group for number, group in self.together.items() if group[0] == number]
        events = [(self.latest(group), False, group) for group in groups]
        events += [(time, True, [number]) for number, time in self.start_time.items()]
        events.sort(key=lambda event: (event[:2], self.messages[event[2][0]].incoming, self.messages[event[2][0]].key))
        left = {number for number, message in enumerate(self.messages) if not (message.incoming or message.own)}
        waits, merges, started = list[int](), list[int](), list[int]()
        for _, starts, group in events:
            after = set().union(*(self.after[number] for number in group if (number in self.merge_time) != starts))
            fresh = sorted(after & left)
            left -= after
            if (fresh or not starts) and (waits or merges or started):
                yield Instruction(tuple(waits), tuple(merges), tuple(started))
                waits, merges, started = [], [], []
            if starts:
                waits += fresh
                started += group
            else:
                waits += [*(number for number in group if number not in self.sources), *fresh]
                merges += [number for number in group if number in self.merge_time]
        if waits or merges or started:
            yield Instruction(tuple(waits), tuple(merges), tuple(started))
        yield Instruction(tuple(sorted(left)), (), ())
