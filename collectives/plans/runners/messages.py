"""Carry out a program by messages: its instruction list, bound to one buffer and one transport.

    direct   a send leaves from the buffer; a receive goes into it, or into a side buffer from which it is merged later
    staged   the transport cannot reach the buffer's memory: every message has a side buffer of pinned host memory

A staged send is lifted: copied out, ordered after the kernel that wrote it, so that the host waits once for both.
While one message is on the wire, the next is lifted, and the receiver merges the one before: combining reads the
pinned memory over the bus, so there is no copy in between.

[Note: Host and device]
On a GPU, calls that combine and copy only launch kernels, on the current stream of the thread that runs the plan. A
message that is started afterwards may read what they write, or overwrite what they still read. So every start comes
after a wait for an event (``MessagesRun.settled``). The event is recorded after all launches so far, including the
caller's launches before the run. A buffer passes from a stream to MPI only here and, for the library's own collectives,
in ``native.py``. What a run launches last is not waited for: it is in order on that stream.
"""

import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache, lru_cache

import numpy as np

from dear_mpi.collectives.algorithms.registry import (
    algorithm_source,
    find_algorithm,
    is_ours,
    lacks_rates,
    load_algorithm,
    programs,
)
from dear_mpi.collectives.lowering.instructions import WINDOW, SideBuffer, write_instructions
from dear_mpi.collectives.lowering.messages import WHOLE, Portion, messages
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import Action, BoundInstruction, InstructionRun, Task
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.tuning import window_of
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Program, renamed, write_program
from dear_mpi.collectives.program.user_file import Source
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, event_for, synchronize
from dear_mpi.kernels.calls import combiner, copier
from dear_mpi.kernels.slab import ALIGNMENT, Slab, round_up


def check(algorithm: str, collective: str, transport: Transport) -> None:
    find_algorithm(algorithm, collective)
    if not is_ours(algorithm):
        proven(algorithm_source(algorithm), algorithm, collective, transport.hosts, rates=transport.rates, pieces=1)


def check_call(call: Call, transport: Transport) -> int | None:
    """The programs of a user's algorithm, proved for this buffer, as a number: ranks may have read different files."""
    return None if is_ours(call.algorithm) else zlib.crc32(repr(proven_for(call, transport)).encode())


def proven_for(call: Call, transport: Transport) -> Sequence[Program]:
    source = algorithm_source(call.algorithm)
    hosts, rates = call.hosts(transport), transport.rates
    return proven(source, call.algorithm, call.collective, hosts, rates=rates, pieces=call.pieces)


@lru_cache(maxsize=256)
def proven(
    source: Source, name: str, collective: str, hosts: tuple[int, ...], *, rates: Rates | None, pieces: int
) -> Sequence[Program]:
    """The programs of a user's algorithm, as its file is now, for all ranks, verified; or a ProgramError."""
    from dear_mpi.collectives.program.verify import verify  # ours are proved by the tests

    # Verify what the user wrote first: an error in its mirror image names steps that are not in the user's file.
    for proved in dict.fromkeys(("all_gather", "broadcast", collective)):
        if proved == collective or proved in load_algorithm(name):
            written = programs(name, proved, len(hosts), hosts=hosts, rates=rates, pieces=pieces)
            verify(written)
    return written


@cache
def say_that_rates_lack(algorithm: str) -> None:
    """Once for each algorithm; its module says what it does without them."""
    what = f"algorithm {algorithm!r} works without the rates inside hosts and between them, which nobody has given"
    print(f"dear-mpi: {what}: see --rates, or Transport.rates", file=sys.stderr, flush=True)


def prepare(task: Task) -> InstructionRun:
    """A run of this rank's program, whose rank 0 is the root of the call."""
    call, transport = task.call, task.transport
    vrank, hosts = (transport.rank - call.root) % transport.size, call.hosts(transport)
    if transport.rank == 0 and lacks_rates(call.algorithm, hosts, transport.rates):
        say_that_rates_lack(call.algorithm)
    if is_ours(call.algorithm):
        algorithm = find_algorithm(call.algorithm, call.collective)
        rates, pieces = transport.rates, call.pieces
        program = write_program(algorithm, vrank, transport.size, hosts=hosts, rates=rates, pieces=pieces)
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
    """A program on a flat buffer, in place, whose memory must stay where it is until ``free``.

    Arguments are as for ``messages`` and ``write_instructions``. Beside the buffer it holds at most ``window`` segments
    for each peer that sends data to combine, or data for chunks that leave in the same step (staged: for each peer and
    direction); more only where a step sends and receives the same chunks in other portions, which none of ours does.
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

    def on(self, buffer: Array) -> "MessagesRun":
        other = copy(self)
        other.buffer = buffer
        other.bind_all()
        return other

    def side_memory(self, slab: Slab) -> dict[int, Array]:
        dtype, longest = self.buffer.dtype, dict[SideBuffer, int]()
        for number, side in self.listing.side_buffers.items():
            longest[side] = max(longest.get(side, 0), self.carried(number).size)
        room = sum(round_up(length * dtype.itemsize, ALIGNMENT) for length in longest.values())
        piece = Slab(lambda nbytes: slab.empty(nbytes, np.dtype(np.uint8)), room)  # one allocation for all
        arrays = {side: piece.empty(length, dtype) for side, length in longest.items()}
        return {n: arrays[side][: self.carried(n).size] for n, side in self.listing.side_buffers.items()}

    def carried(self, number: int) -> Array:
        message = self.listing.messages[number]
        return self.buffer[message.start : message.stop]

    def bind_all(self) -> None:
        init = {False: self.transport.send_init, True: self.transport.recv_init}
        requests = [
            init[message.incoming](self.beside.get(number, self.carried(number)), message.peer, self.tag)
            for number, message in enumerate(self.listing.messages)
        ]
        super().__init__(self.rank, list(self.bound(requests)), requests)

    def bound(self, requests: Sequence[Request]) -> Iterator[BoundInstruction]:
        """The instructions, bound. On a GPU some are cut in two by a wait for an event, see [Note: Host and device]."""
        launched = True  # the caller may have launched what wrote the buffer
        for instruction in self.listing.instructions:
            waits = [requests[number] for number in instruction.waits]
            parts, actions = [self.part("ending", number) for number in instruction.waits], list[Action]()
            if instruction.merges:
                actions.append(self.merge(instruction.merges))
                parts.append(self.part("merging", instruction.merges[0]))
            for number in instruction.starts:
                lifts = self.lift(number)
                actions += lifts
                parts += [self.part("copying", number)] * len(lifts)
            starts = [requests[number].Start for number in instruction.starts]
            started = [self.part("starting", number) for number in instruction.starts]
            launched = launched or bool(actions)
            if self.settled is not None and launched and starts:
                yield BoundInstruction(waits, [*actions, self.settled.record], [*parts, Part("copying")])
                yield BoundInstruction([self.settled], starts, [Part("device"), *started])
                launched = False
            else:
                yield BoundInstruction(waits, [*actions, *starts], [*parts, *started])

    def part(self, kind: str, number: int) -> Part:
        """What a call does with a message; merging is combining or copying."""
        message = self.listing.messages[number]
        if kind == "merging":
            kind = "combining" if message.combine else "copying"
        first, last = (bisect_right(self.chunks, place) - 1 for place in (message.start, message.stop - 1))
        nbytes = (message.stop - message.start) * self.buffer.itemsize
        chunk = first if first == last else f"{first}..{last}"
        return Part(kind, *message.key, message.peer, message.incoming, chunk, nbytes)

    def merge(self, group: Sequence[int]) -> Action:
        """Copy or combine what was received into the buffer; contributions are combined in rank order."""
        target, peers = self.carried(group[0]), {number: self.listing.messages[number].peer for number in group}
        if not self.listing.messages[group[0]].combine:
            return copier(target, self.beside[group[0]])
        ordered = sorted(group, key=peers.__getitem__)
        before = [self.beside[number] for number in ordered if peers[number] < self.rank]
        return combiner(target, before, [self.beside[number] for number in ordered[len(before) :]], self.op)

    def lift(self, number: int) -> list[Action]:
        """Bring what is to be sent from the buffer to its side buffer, if it has one."""
        lifted = number in self.beside and not self.listing.messages[number].incoming
        return [copier(self.beside[number], self.carried(number))] if lifted else []

    def free(self) -> None:
        synchronize(self.buffer)  # kernels may still read the side buffers
        super().free()
