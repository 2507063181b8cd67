"""Run a program by messages.

    direct   sends leave from the buffer; receives go into it, or into a side buffer to be merged later
    staged   MPI cannot reach the buffer: every message has a side buffer in pinned host memory

A staged send is copied out after the kernel that wrote it, so the host waits once for both. Combining reads pinned
memory over the bus, without a copy.

[Note: Host and device]
On a GPU, combining and copying only launch kernels on the current stream. A later message may read what they write or
overwrite what they read. So every start follows a wait for an event (``MessagesRun.settled``) recorded after all
launches so far, the caller's included. A buffer passes from a stream to MPI only here and in ``native.py``. The last
launches are not waited for: they are in order on the stream.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from dear_mpi.collectives.algorithms.registry import (
    algorithm_source,
    find_algorithm,
    is_ours,
    load_algorithm,
    programs,
)
from dear_mpi.collectives.lowering.messages import WHOLE, WINDOW, Portion, SideBuffer, messages, write_instructions
from dear_mpi.collectives.plans.call import Call, Task
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.plan import Act, Action, InstructionRun, waiting
from dear_mpi.collectives.plans.tuning import window_of
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Program, renamed, write_program
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, event_for, synchronize
from dear_mpi.kernels.calls import combiner, copier
from dear_mpi.kernels.slab import ALIGNMENT, Slab, round_up


def check(algorithm: str, collective: str, transport: Transport) -> None:
    find_algorithm(algorithm, collective)
    if not is_ours(algorithm):
        proven(algorithm_source(algorithm), algorithm, collective, transport.hosts, rates=transport.rates, pieces=1)


def check_call(call: Call, transport: Transport) -> int | None:
    """Return a checksum of a user's proved programs: ranks may have read different files."""
    return None if is_ours(call.algorithm) else zlib.crc32(repr(proven_for(call, transport)).encode())


def proven_for(call: Call, transport: Transport) -> Sequence[Program]:
    source, hosts = algorithm_source(call.algorithm), call.hosts(transport)
    return proven(source, call.algorithm, call.collective, hosts, rates=transport.rates, pieces=call.pieces)


@lru_cache(maxsize=256)
def proven(
    source: Any, name: str, collective: str, hosts: tuple[int, ...], *, rates: Rates | None, pieces: int
) -> Sequence[Program]:
    from dear_mpi.collectives.program.verify import verify  # tests prove ours

    # The user's own first: errors in a mirror image name steps that the file lacks.
    for proved in dict.fromkeys(("all_gather", "broadcast", collective)):
        if proved == collective or proved in load_algorithm(name):
            written = programs(name, proved, len(hosts), hosts=hosts, rates=rates, pieces=pieces)
            verify(written)
    return written


def prepare(task: Task) -> InstructionRun:
    call, transport = task.call, task.transport
    vrank, hosts = (transport.rank - call.root) % transport.size, call.hosts(transport)
    if is_ours(call.algorithm):
        write, rates = find_algorithm(call.algorithm, call.collective), transport.rates
        program = write_program(write, vrank, transport.size, hosts=hosts, rates=rates, pieces=call.pieces)
    else:
        program = proven_for(call, transport)[vrank]
    return MessagesRun(
        renamed(program, call.root),
        task.buffer,
        call.partition(transport.size).chunks(program.parts),
        transport,
        op=task.op,
        segment=call.segment,
        tag=task.tag,
        staged=not transport.takes(task.buffer),
        slab=task.slab,
        window=window_of(transport.hosts, call.segment * call.x.dtype.itemsize),
        portion=call.portion,
    )


class MessagesRun(InstructionRun):
    """A program on a flat buffer, in place; the memory must not move until ``free``.

    Side memory: at most ``window`` segments per peer (staged: per peer and direction).
    """

    def __init__(
        self,
        program: Program,
        buffer: Array,
        chunks: Sequence[int],
        transport: Transport,
        *,
        op: str,
        segment: int,
        tag: int,
        staged: bool = False,
        slab: Slab | None = None,
        window: int = WINDOW,
        portion: Portion = WHOLE,
    ) -> None:
        self.op, self.transport, self.tag, self.settled = op, transport, tag, event_for(buffer)
        self.rank, self.buffer, self.program, self.chunks = program.rank, buffer, program, chunks
        self.listing = write_instructions(messages(program, chunks, segment, portion), window, staged=staged)
        self.beside = self.side_memory(Slab.pinned(buffer) if staged else slab or Slab.beside(buffer))
        self.bind_all()

    def on(self, task: Task) -> "MessagesRun":
        other = copy(self)
        other.buffer = task.buffer
        other.bind_all()
        return other

    def side_memory(self, slab: Slab) -> dict[int, Array]:
        dtype, longest = self.buffer.dtype, dict[SideBuffer, int]()
        for number, side in self.listing.side_buffers.items():
            longest[side] = max(longest.get(side, 0), self.elements(number).size)
        room = sum(round_up(length * dtype.itemsize, ALIGNMENT) for length in longest.values())
        piece = Slab(lambda nbytes: slab.empty(nbytes, np.dtype(np.uint8)), room)
        arrays = {side: piece.empty(length, dtype) for side, length in longest.items()}
        return {n: arrays[side][: self.elements(n).size] for n, side in self.listing.side_buffers.items()}

    def elements(self, number: int) -> Array:
        message = self.listing.messages[number]
        return self.buffer[message.start : message.stop]

    def bind_all(self) -> None:
        init = {False: self.transport.send_init, True: self.transport.recv_init}
        requests = [
            init[message.incoming](self.beside.get(number, self.elements(number)), message.peer, self.tag)
            for number, message in enumerate(self.listing.messages)
        ]
        super().__init__(self.rank, list(self.acts(requests)), requests)

    def acts(self, requests: Sequence[Request]) -> Iterator[Act]:
        """Bind the instructions; GPU starts may wait for an event, see [Note: Host and device]."""
        launched = True  # the caller may have launched kernels that write the buffer
        for instruction in self.listing.instructions:
            for number in instruction.waits:
                yield waiting(self.part("ending", number), requests[number])
            if instruction.merges:
                yield Act(self.part("merging", instruction.merges[0]), self.merge(instruction.merges))
                launched = True
            for number in instruction.starts:
                if number in self.beside and not self.listing.messages[number].incoming:
                    yield Act(self.part("copying", number), copier(self.beside[number], self.elements(number)))
                    launched = True
            if self.settled is not None and launched and instruction.starts:
                yield Act(Part("copying"), self.settled.record)
                yield waiting(Part("device"), self.settled)
                launched = False
            for number in instruction.starts:
                yield Act(self.part("starting", number), requests[number].Start)

    def part(self, kind: str, number: int) -> Part:
        message = self.listing.messages[number]
        if kind == "merging":
            kind = "combining" if message.combine else "copying"
        first, last = (bisect_right(self.chunks, place) - 1 for place in (message.start, message.stop - 1))
        nbytes = (message.stop - message.start) * self.buffer.itemsize
        chunk = first if first == last else f"{first}..{last}"
        return Part(kind, *message.key, message.peer, message.incoming, chunk, nbytes)

    def merge(self, group: Sequence[int]) -> Action:
        target, peers = self.elements(group[0]), {number: self.listing.messages[number].peer for number in group}
        if not self.listing.messages[group[0]].combine:
            return copier(target, self.beside[group[0]])
        ordered = sorted(group, key=peers.__getitem__)
        before = [self.beside[number] for number in ordered if peers[number] < self.rank]
        return combiner(target, before, [self.beside[number] for number in ordered[len(before) :]], self.op)

    def free(self) -> None:
        synchronize(self.buffer)  # kernels may still read side buffers
        super().free()
