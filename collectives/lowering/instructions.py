"""Order a rank's messages: when each starts, is waited for and is merged. The heart of a plan.

Terms: a **block** is the smallest unit of a buffer that messages share; a **lane** is all messages of one direction
between two ranks; a **side buffer** is memory outside the user's buffer that a message uses; a receive is **merged**
when its data is combined or copied from its side buffer into the buffer. Receives of one step into the same blocks are
merged together.

A send may start when its data is final: while segment k is added, segment k+1 is on the wire.

[Note: Why instructions cannot deadlock]
A rank runs a fixed list of instructions "wait for these messages, merge, start those". Every message has a key (step,
number in its lane), equal at both ends. An instruction has a time, which is a key. It waits only for messages with keys
up to its time, and starts only messages with larger keys. Take the unfinished message with the smallest key. Everything
its two ends waited for before starting it has a smaller key, hence is finished. So both have started it, and it
completes even if sends are synchronous. The window only adds waits for earlier messages of the same lanes.

[Note: The window]
At most ``window`` messages per lane are posted: message m starts when message m - window is complete. Posting all
segments of a chunk makes MPI search long queues (64 MiB in 16 KiB segments: 80 times slower), and each posted receive
that combines needs a side buffer. ``window_of`` in ``plans/tuning.py`` chooses a larger window between hosts.
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
    """Wait for messages in order, merge receives at once, then start messages."""

    waits: tuple[int, ...]
    merges: tuple[int, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class InstructionList:
    """One rank's run. ``side_buffers`` differ for messages in flight at the same time."""

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
    """Order one rank's messages. If ``staged``, each has a side buffer: the transport cannot reach the buffer."""
    writer = Writer(messages, window, staged=staged)
    return InstructionList(messages, list(writer.instructions()), writer.side_buffers)


@dataclass
class Version:
    """A block's content after a step: its writers (receives) and later readers (sends)."""

    step: int = -1
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)


class Writer:
    """Finds when each message may start, and which sends must complete before."""

    def __init__(self, messages: Sequence[Message], window: int, *, staged: bool) -> None:
        self.messages, self.window, self.staged = messages, window, staged
        self.blocks: dict[int, list[Version]] = defaultdict(lambda: [Version()])
        self.lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)  # (peer, incoming) -> its messages so far
        self.side_buffers: dict[int, SideBuffer] = {}
        self.together: dict[object, list[int]] = defaultdict(list)
        for number, message in enumerate(messages):
            if message.incoming:
                self.together[self.place(number)].append(number)
        self.merge_time: dict[int, Key] = {}
        self.start_time: dict[int, Key] = {}
        # Sends that must complete before a message starts or, with a side buffer, before it is merged.
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
        """Reuse the side buffer of the message ``window`` before this one in its lane."""
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
            # A side buffer is reused after its merge; a message that is merged late gets its own.
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
        """Yield all events by time: merges first, then starts.

        Sends start first, because a peer waits for them, while receives are posted a window ahead. No send is waited
        for twice.
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
