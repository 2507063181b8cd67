"""Carry out a program by messages: its instruction list, bound to one buffer and one transport.

[Note: Host and device]
On a GPU, calls that combine and copy only launch kernels, on the current stream of the thread that runs the plan. A
message that is started afterwards may read what they write, or overwrite what they still read. So every start comes
after a wait for an event (``MessagesRun.settled``). The event is recorded after all launches so far, including the
caller's launches before the run. A buffer passes from a stream to MPI only here and, for the library's own collectives,
in ``native.py``. To an ``InstructionRun`` the event is one more thing to wait for. What a run launches last is not
waited for: it is in order on that stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, find_algorithm
from dear_mpi.collectives.lowering.instructions import WINDOW, InstructionList, write_instructions
from dear_mpi.collectives.lowering.messages import WHOLE, Message, Portion, messages
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import BoundInstruction, InstructionRun, bind
from dear_mpi.collectives.plans.message_buffers import MessageBuffers
from dear_mpi.collectives.plans.proof import proven
from dear_mpi.collectives.plans.runners.runner import Task
from dear_mpi.collectives.plans.tuning import window_of
from dear_mpi.collectives.program.program import Program, renamed, write_program
from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.kernels.array import Array, event_for, synchronize
from dear_mpi.kernels.slab import Slab


def check(algorithm: str, collective: str, transport: Transport) -> None:
    find_algorithm(algorithm, collective)
    if algorithm not in ALGORITHMS:
        proven(algorithm, collective, transport.size, transport.hosts, pieces=1)


def check_call(call: Call, transport: Transport) -> int | None:
    """The programs of a user's algorithm, proved for this buffer, as a number."""
    if call.algorithm in ALGORITHMS:
        return None
    return proven(call.algorithm, call.collective, transport.size, call.hosts(transport), call.pieces).checksum


def prepare(task: Task) -> InstructionRun:
    """A run of this rank's program, with the ranks renamed for the root of the call."""
    call, transport = task.call, task.transport
    vrank, hosts = (transport.rank - call.root) % transport.size, call.hosts(transport)
    if call.algorithm in ALGORITHMS:
        algorithm = find_algorithm(call.algorithm, call.collective)
        program = write_program(algorithm, vrank, transport.size, hosts=hosts, pieces=call.pieces)
    else:
        program = proven(call.algorithm, call.collective, transport.size, hosts, call.pieces).programs[vrank]
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
    """A program on a flat buffer, in place.

    Args:
        buffer: one-dimensional and contiguous; its memory must stay where it is until ``free``.
        chunks: the borders of its chunks (``Partition.chunks``).
        op: how ``combine`` receives are combined (``sum``, ``prod``, ``min``, ``max``).
        segment: the largest number of elements in one message.
        staged: whether messages pass through pinned host memory, because the transport does not take the buffer's.
        slab: where side buffers are taken from, unless they are staged.
        window: how many messages of a lane are posted at a time.
        portion: the cells that it is about.

    Beside the buffer it holds at most ``window`` segments for each peer that sends data to combine (staged: for each
    peer and direction); more only where a step sends and receives the same chunks in other portions, which none of
    our algorithms does.
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
        self.listing = write_instructions(messages(program, chunks, segment, portion), window, staged=staged)
        side_memory = Slab.pinned(buffer) if staged else slab or Slab.beside(buffer)
        self.buffers = MessageBuffers(self.listing, program.rank, buffer, side_memory)
        self.bind_all()

    def on(self, buffer: Array) -> MessagesRun:
        other = copy(self)
        other.buffers = self.buffers.on(buffer)
        other.bind_all()
        return other

    def bind_all(self) -> None:
        """Make the requests, and bind the instructions to them."""
        init = {False: self.transport.send_init, True: self.transport.recv_init}
        requests = [
            init[message.incoming](self.buffers.memory(number), message.peer, self.tag)
            for number, message in enumerate(self.listing.messages)
        ]
        super().__init__(self.buffers.rank, list(self.prepared(self.listing, requests)), requests)

    def prepared(self, listing: InstructionList, requests: Sequence[Request]) -> Iterator[BoundInstruction]:
        """The instructions, bound. On a GPU some are cut in two by a wait for an event, see [Note: Host and device]."""
        launched = True  # the caller may have launched what wrote the buffer
        for instruction in listing.instructions:
            waits = [requests[number] for number in instruction.waits]
            names = [described(listing.messages[number]) for number in instruction.waits]
            actions = [self.buffers.merge(instruction.merges, self.op)] if instruction.merges else []
            actions += [lift for number in instruction.starts for lift in self.buffers.lift(number)]
            starts = [requests[number].Start for number in instruction.starts]
            launched = launched or bool(actions)
            if self.settled is not None and launched and starts:
                yield bind(waits, names, [*actions, self.settled.record])
                on_device = (self.settled.synchronize,), (self.settled.done,), ("waiting for the device",)
                yield BoundInstruction(*on_device, tuple(starts))
                launched = False
            else:
                yield bind(waits, names, [*actions, *starts])

    def free(self) -> None:
        synchronize(self.buffers.buffer)  # kernels may still read the side buffers
        super().free()


def described(message: Message) -> str:
    """A message, for errors."""
    (step, number), verb = message.key, "receiving from" if message.incoming else "sending to"
    return f"step {step}, message {number}, {verb} rank {message.peer}"
