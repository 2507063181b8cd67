"""Run a program by messages.

    direct   sends leave from the buffer; receives go into it, or into a side buffer to be merged later
    staged   MPI cannot reach the buffer: every message has a side buffer in pinned host memory

A message of several runs has a side buffer at both ends. Scratch is a further array. Data that a rank sends to itself
is combined or copied in place.

A staged send is copied out after the kernel that wrote it, so the host waits once for both. Combining reads pinned
memory over the bus, without a copy.

[Note: Host and device]
On a GPU, combining and copying only launch kernels on the current stream. A later message may read what they write or
overwrite what they read. So every start follows a wait for an event (``MessagesRun.settled``) recorded after all
launches so far, the caller's included. A buffer passes from a stream to MPI only here and in ``native.py``. The last
launches are not waited for: they are in order on the stream.
"""

import math
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from dear_mpi.collectives.algorithms.registry import (
    algorithm_source,
    find_algorithm,
    is_ours,
    load_algorithm,
    programs,
)
from dear_mpi.collectives.lowering.messages import WHOLE, WINDOW, Portion, Run, SideBuffer, messages, write_instructions
from dear_mpi.collectives.plans.call import Call, Task
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.plan import Act, InstructionRun, waiting
from dear_mpi.collectives.plans.tuning import packed_of, window_of
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
        packed=packed_of(transport.hosts) / call.x.dtype.itemsize,
    )


class MessagesRun(InstructionRun):
    """A program on a flat buffer, in place; the memory must not move until ``free``.

    Side memory: at most ``window`` segments per peer (staged: per peer and direction), and the program's scratch.
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
        packed: float = math.inf,
    ) -> None:
        self.op, self.transport, self.tag, self.settled = op, transport, tag, event_for(buffer)
        self.rank, self.buffer, self.program, self.chunks = program.rank, buffer, program, chunks
        cut = messages(program, chunks, segment, portion, packed)
        self.listing, near = write_instructions(cut, window, staged=staged), slab or Slab.beside(buffer)
        self.scratch = near.empty(program.scratch * chunks[-1], buffer.dtype)
        self.beside = self.side_memory(Slab.pinned(buffer) if staged else near)
        self.bind_all()

    def on(self, task: Task) -> "MessagesRun":
        other = copy(self)
        other.buffer = task.buffer
        other.bind_all()
        return other

    def side_memory(self, slab: Slab) -> dict[int, Array]:
        dtype, longest = self.buffer.dtype, dict[SideBuffer, int]()
        for number, side in self.listing.side_buffers.items():
            longest[side] = max(longest.get(side, 0), self.listing.messages[number].length)
        room = sum(round_up(length * dtype.itemsize, ALIGNMENT) for length in longest.values())
        piece = Slab(lambda nbytes: slab.empty(nbytes, np.dtype(np.uint8)), room)
        arrays = {side: piece.empty(length, dtype) for side, length in longest.items()}
        return {n: arrays[side][: self.listing.messages[n].length] for n, side in self.listing.side_buffers.items()}

    def elements(self, run: Run) -> Array:
        count = self.chunks[-1]
        if run.start < count:
            return self.buffer[run.start : run.stop]
        return self.scratch[run.start - count : run.stop - count]

    def memory(self, number: int) -> list[Array]:
        """Return where the data of a message's runs is until it is merged, or from when it is sent."""
        source = self.listing.sources.get(number, number)
        runs = self.listing.messages[source].runs
        if source not in self.beside:
            return [self.elements(run) for run in runs]
        borders = [0, *accumulate(run.length for run in runs)]
        return [self.beside[source][start:stop] for start, stop in pairwise(borders)]

    def bind_all(self) -> None:
        init = {False: self.transport.send_init, True: self.transport.recv_init}
        requests = {
            number: init[message.incoming](
                self.beside[number] if number in self.beside else self.elements(message.runs[0]), message.peer, self.tag
            )
            for number, message in enumerate(self.listing.messages)
            if not message.own
        }
        super().__init__(self.rank, list(self.acts(requests)), list(requests.values()))

    def acts(self, requests: Mapping[int, Request]) -> Iterator[Act]:
        """Bind the instructions; GPU starts may wait for an event, see [Note: Host and device]."""
        launched = True  # the caller may have launched kernels that write the buffer
        for instruction in self.listing.instructions:
            for number in instruction.waits:
                yield waiting(self.part("ending", number), requests[number])
            if instruction.merges:
                yield from self.merges(instruction.merges)
                launched = True
            for number in instruction.starts:
                message = self.listing.messages[number]
                if number in self.beside and not message.incoming:
                    for run, memory in zip(message.runs, self.memory(number), strict=True):
                        yield Act(self.part("copying", number, run), copier(memory, self.elements(run)))
                    launched = True
            if self.settled is not None and launched and instruction.starts:
                yield Act(Part("copying"), self.settled.record)
                yield waiting(Part("device"), self.settled)
                launched = False
            for number in instruction.starts:
                if number in requests:
                    yield Act(self.part("starting", number), requests[number].Start)

    def part(self, kind: str, number: int, *runs: Run) -> Part:
        message = self.listing.messages[number]
        runs = runs or (*message.runs,)
        chunks = self.program.label(*(range(self.place(run.start), self.place(run.stop - 1) + 1) for run in runs))
        nbytes = sum(run.length for run in runs) * self.buffer.itemsize
        return Part(kind, *message.key, message.peer, message.incoming, chunks, nbytes)

    def place(self, element: int) -> int:
        """Return an element's chunk, in the buffer or in scratch."""
        copy, element = divmod(element, self.chunks[-1])
        return copy * self.program.chunks + bisect_right(self.chunks, element) - 1

    def merges(self, group: Sequence[int]) -> Iterator[Act]:
        """Bind what arrives together: a call for each run of the buffer."""
        arriving = dict[int, list[tuple[int, int, Run, Array]]]()
        for number in group:
            message = self.listing.messages[number]
            for run, memory in zip(message.runs, self.memory(number), strict=True):
                arriving.setdefault(run.start, []).append((message.peer, number, run, memory))
        for found in arriving.values():
            _, number, run, memory = found[0]
            if not run.combine:
                yield Act(self.part("copying", number, run), copier(self.elements(run), memory))
                continue
            ordered = sorted(found, key=itemgetter(0))
            before = [memory for peer, *_, memory in ordered if peer < self.rank]
            after = [memory for *_, memory in ordered[len(before) :]]
            yield Act(self.part("combining", number, run), combiner(self.elements(run), before, after, self.op))

    def free(self) -> None:
        synchronize(self.buffer)  # kernels may still read side buffers
        super().free()
