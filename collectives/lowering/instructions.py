"""Order the messages of a rank: when each is started, waited for, and combined. The heart of a plan.

Words: a **cell** is the smallest part of a buffer that messages share; a **lane** is all messages of one direction
between two ranks; a **side buffer** is memory beside the user's buffer, which a message is sent from or received into;
a receive is **merged** when what it brought is combined or copied from its side buffer into the buffer; receives of one
step that combine with the same cells are merged together.

A send may start as soon as the data it carries is final, which depends on single receives, not on whole steps:
while segment k of a chunk is added, segment k+1 is on the wire, and the wire is never silent between steps.

[Note: Why instructions cannot deadlock]
A rank goes through a fixed list of instructions "wait for these messages, merge, start those". Every message has a key
(step, number in its lane) that both of its ends agree on. An instruction has a time, which is a key, and obeys two
rules: it waits only for messages whose key is at most its time, and what it starts has a larger key than its time.
Look at the unfinished message with the smallest key: whatever its sender and its receiver had to wait for before
starting it has a smaller key, hence is finished; so both have started it, and it completes, even if sends are
synchronous. The window is no part of this argument: it only adds waits for earlier messages of a rank's own lanes.

[Note: The window]
At most ``window`` messages to, and as many from, a peer are posted at a time: message m starts when message m - window
is done. Posting all segments of a chunk at once makes MPI search long queues for every message (seen: 64 MiB in 16 KiB
segments, 80 times slower), and each posted receive that combines needs a side buffer. ``window_of`` in
``plans/tuning.py`` says how large the window is: larger between hosts, where the wire must not wait for the thread that
posts messages.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dear_mpi.collectives.lowering.messages import Message

WINDOW = 2

Key = tuple[int, int]
SideBuffer = tuple[int, bool, int]  # peer, incoming, number
BEGIN: Key = (-1, 0)


@dataclass(frozen=True)
class Instruction:
    """Wait for messages, in this order; then merge receives, either one or several that are combined at once; then
    start messages. They are numbers into ``InstructionList.messages``."""

    waits: tuple[int, ...]
    merges: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class InstructionList:
    """What a rank does in one run. ``side_buffers`` has the side buffer of each message that needs one; messages that
    are under way at the same time have different ones."""

    messages: Sequence[Message]
    instructions: Sequence[Instruction]
    side_buffers: dict[int, SideBuffer]

    def __str__(self) -> str:
        """One line per instruction; a message is shown by its direction, step and number.

        >>> from dear_mpi.collectives.algorithms.registry import programs
        >>> from dear_mpi.collectives.lowering.messages import messages
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
    """Order the messages of one rank, sorted as ``messages()`` has them. If ``staged``, each has a side buffer, because
    the transport cannot reach the buffer itself."""
    writer = Writer(messages, window, staged=staged)
    return InstructionList(messages, list(writer.instructions()), writer.side_buffers)


@dataclass
class Version:
    """What a cell holds from a step on: the receives of that step wrote it, and sends of later ones have read it."""

    step: int = -1
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)


class Writer:
    """Finds for each message when it may start, and which sends must be over before that."""

    def __init__(self, messages: Sequence[Message], window: int, *, staged: bool) -> None:
        self.messages, self.window, self.staged = messages, window, staged
        self.cells: dict[int, list[Version]] = defaultdict(lambda: [Version()])
        self.lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)  # (peer, incoming) -> its messages so far
        self.side_buffers: dict[int, SideBuffer] = {}
        self.together: dict[object, list[int]] = defaultdict(list)  # receives that are merged at once
        for number, message in enumerate(messages):
            if message.incoming:
                self.together[self.place(number)].append(number)
        self.merge_time: dict[int, Key] = {}  # of receives that have a side buffer
        self.start_time: dict[int, Key] = {}
        # Sends that must be over before a message starts; of receives that have a side buffer, before they are merged.
        self.after: dict[int, set[int]] = defaultdict(set)
        for number, message in enumerate(messages):
            (self.add_receive if message.incoming else self.add_send)(number, message)
            self.keep_lane(number, message)

    def place(self, number: int) -> object:
        """What receives have in common that are merged at once: the step, and the first cell."""
        message = self.messages[number]
        return (message.key[0], message.cells.start) if message.combine else number

    def latest(self, numbers: Iterable[int]) -> Key:
        """When the last of these messages is over, and merged."""
        return max((self.merge_time.get(number, self.messages[number].key) for number in numbers), default=BEGIN)

    def add_send(self, number: int, message: Message) -> None:
        """A send starts when the receives that wrote its cells, all of earlier steps, are merged."""
        read = [self.cells[cell][-1] for cell in message.cells]
        for version in read:
            version.readers.add(number)
        self.start_time[number] = self.latest(set().union(*(version.writers for version in read)))
        if self.staged:
            self.side_buffers[number] = self.side_buffer(message)

    def side_buffer(self, message: Message) -> SideBuffer:
        """The side buffer of the message ``window`` before this one in its lane, which is over by then."""
        lane = self.lanes[message.peer, message.incoming]
        return message.peer, message.incoming, len(lane) % self.window

    def add_receive(self, number: int, message: Message) -> None:
        """A receive goes into the buffer if no send reads there any more; else into a side buffer, to be merged."""
        cells = [self.cells[cell] for cell in message.cells]
        for versions in cells:  # the receives of one step combine with the same data, in any order
            if versions[-1].step != message.key[0]:
                versions.append(Version(message.key[0]))
            versions[-1].writers.add(number)
        readers = set().union(*(before.readers for *_, before, _ in cells))
        writers = set().union(*(before.writers for *_, before, _ in cells))
        crossing = any(self.messages[reader].key[0] == message.key[0] for reader in readers)
        if message.combine or self.staged or crossing:
            arrived = max(self.messages[other].key for other in self.together[self.place(number)])
            self.merge_time[number] = max(arrived, self.latest(readers))
            # A side buffer is used again when its message is merged; a message that is merged late has its own.
            late = self.merge_time[number] > message.key
            own = message.peer, True, self.window + number
            self.side_buffers[number] = own if late else self.side_buffer(message)
            self.start_time[number] = BEGIN
        else:
            self.start_time[number] = self.latest(readers | writers)
        self.after[number] = readers

    def keep_lane(self, number: int, message: Message) -> None:
        """Messages of a lane start in order, each when the one that is ``window`` before it is over."""
        lane = self.lanes[message.peer, message.incoming]
        if lane:
            self.start_time[number] = max(self.start_time[number], self.start_time[lane[-1]])
        if len(lane) >= self.window:
            self.start_time[number] = max(self.start_time[number], self.messages[lane[-self.window]].key)
            if not message.incoming:
                self.after[number].add(lane[-self.window])
        lane.append(number)

    def instructions(self) -> Iterator[Instruction]:
        """All events in order of time: at each time what arrives is merged first, then messages are started.

        Sends go first, because a peer waits for them, while a receive is posted a window ahead of its need. No send is
        waited for twice.
        """
        events = [self.event(self.latest(group), group, starts=False) for group in self.together.values()]
        events += [self.event(time, [number], starts=True) for number, time in self.start_time.items()]
        left = {number for number, message in enumerate(self.messages) if not message.incoming}  # not waited for yet
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
        """That messages are started, or have arrived and are merged; in the order in which it is done."""
        return time, starts, self.messages[group[0]].incoming, self.messages[group[0]].key, group
