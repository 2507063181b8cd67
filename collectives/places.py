"""Where the messages of a plan leave from and land, and what is copied or combined between there and the buffer.

    direct   a send leaves from the buffer; a receive lands in it, or in a slot from which it is folded in later
    staged   the transport cannot reach the buffer's memory: every message passes through a slot of pinned host memory

A staged send is lifted: copied out, ordered behind the kernel that wrote it, so that the host waits once for both.
While one message is on the wire, the next is lifted, and the receiver folds in the one before: combining reads the
pinned slot over the bus, so there is no copy in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dear_mpi.collectives.messages import Message
from dear_mpi.collectives.script import Script, Slot
from dear_mpi.kernels.accumulate import copier, folder
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import Slab

__all__ = ["Places"]

Action = Callable[[], object]


class Places:
    """The memory of each message of a script.

    Args:
        script: whose messages.
        rank: who runs it.
        buffer: what they carry parts of.
        slab: where the slots are taken from; two for each peer and direction that needs any.
    """

    def __init__(self, script: Script, rank: int, buffer: Array, slab: Slab) -> None:
        self.messages, self.rank, self.buffer = script.messages, rank, buffer
        longest: dict[Slot, int] = {}
        for number, slot in script.slots.items():
            longest[slot] = max(longest.get(slot, 0), count(script.messages[number]))
        arrays = {slot: slab.empty(length, buffer.dtype) for slot, length in longest.items()}
        self.slots = {n: arrays[slot][: count(script.messages[n])] for n, slot in script.slots.items()}

    def part(self, number: int) -> Array:
        """What a message carries, in the buffer."""
        message = self.messages[number]
        return self.buffer[message.start : message.stop]

    def place(self, number: int) -> Array:
        """What the transport sends from or receives into."""
        return self.slots.get(number, self.part(number))

    def fold(self, group: Sequence[int], op: str) -> Action:
        """Bring what was received from its slots into the buffer; what is combined, in the order of the ranks."""
        part = self.part(group[0])
        if not self.messages[group[0]].combine:
            return copier(part, self.slots[group[0]])
        ordered = sorted(group, key=lambda number: self.messages[number].peer)
        before = [self.slots[number] for number in ordered if self.messages[number].peer < self.rank]
        return folder(part, before, [self.slots[number] for number in ordered[len(before) :]], op)

    def lift(self, number: int) -> list[Action]:
        """Bring what is to be sent from the buffer to its slot, if it has one."""
        lifted = number in self.slots and not self.messages[number].incoming
        return [copier(self.slots[number], self.part(number))] if lifted else []


def count(message: Message) -> int:
    """Elements in a message."""
    return message.stop - message.start
