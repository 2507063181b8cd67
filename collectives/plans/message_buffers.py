"""The memory of the messages of a plan, and what is copied or combined between there and the buffer.

    direct   a send leaves from the buffer; a receive goes into it, or into a side buffer from which it is merged later
    staged   the transport cannot reach the buffer's memory: every message has a side buffer of pinned host memory

A staged send is lifted: copied out, ordered after the kernel that wrote it, so that the host waits once for both.
While one message is on the wire, the next is lifted, and the receiver merges the one before: combining reads the
pinned memory over the bus, so there is no copy in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from dear_mpi.collectives.lowering.instructions import InstructionList, SideBuffer
from dear_mpi.collectives.plans.execution import Action
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.calls import combiner, copier
from dear_mpi.kernels.slab import ALIGNMENT, Slab, round_up


class MessageBuffers:
    """The memory of each message of a rank's instruction list, whose messages carry parts of ``buffer``.

    Side buffers are taken from the slab: a window of them for each peer and direction that needs any.
    """

    def __init__(self, listing: InstructionList, rank: int, buffer: Array, slab: Slab) -> None:
        self.messages, self.rank, self.buffer = listing.messages, rank, buffer
        longest: dict[SideBuffer, int] = {}
        for number, side in listing.side_buffers.items():
            longest[side] = max(longest.get(side, 0), self.part(number).size)
        room = sum(round_up(length * buffer.dtype.itemsize, ALIGNMENT) for length in longest.values())
        piece = Slab(lambda nbytes: slab.empty(nbytes, np.dtype(np.uint8)), room)  # one allocation for all
        arrays = {side: piece.empty(length, buffer.dtype) for side, length in longest.items()}
        self.beside = {n: arrays[side][: self.part(n).size] for n, side in listing.side_buffers.items()}

    def on(self, buffer: Array) -> MessageBuffers:
        """The same side buffers, beside another buffer."""
        other = copy(self)
        other.buffer = buffer
        return other

    def part(self, number: int) -> Array:
        """What a message carries, in the buffer."""
        message = self.messages[number]
        return self.buffer[message.start : message.stop]

    def memory(self, number: int) -> Array:
        """What the transport sends from or receives into."""
        return self.beside.get(number, self.part(number))

    def merge(self, group: Sequence[int], op: str) -> Action:
        """Copy or combine what was received into the buffer; contributions are combined in rank order."""
        part = self.part(group[0])
        if not self.messages[group[0]].combine:
            return copier(part, self.beside[group[0]])
        ordered = sorted(group, key=lambda number: self.messages[number].peer)
        before = [self.beside[number] for number in ordered if self.messages[number].peer < self.rank]
        return combiner(part, before, [self.beside[number] for number in ordered[len(before) :]], op)

    def lift(self, number: int) -> list[Action]:
        """Bring what is to be sent from the buffer to its side buffer, if it has one."""
        lifted = number in self.beside and not self.messages[number].incoming
        return [copier(self.beside[number], self.part(number))] if lifted else []
