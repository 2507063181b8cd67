"""Run one rank's program on one buffer: the script of a plan, compiled to entries (``entries.py``).

[Note: Host and device]
On a GPU, calls that combine and copy only launch kernels, on the current stream of the thread that runs the plan.
Whatever is started afterwards may read what they write, or overwrite what they still read, so every start is
preceded by a wait on an event recorded behind all that was launched so far (``Execution.settled``), also by the
caller before the run. Here, and in ``native.py`` for the library's own collectives, a buffer passes from a stream to
MPI, nowhere else. To a ``Run`` the event is one more thing to wait for. What a run launches last is not waited
for: it is in order on that stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dear_mpi.collectives.entries import Prepared, Run, prepare
from dear_mpi.collectives.messages import Message, messages
from dear_mpi.collectives.places import Places
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.script import WINDOW, Script, write_script
from dear_mpi.collectives.transport import Request, Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import event_for, settle
from dear_mpi.kernels.slab import Slab

__all__ = ["Execution"]


class Execution(Run):
    """A program on a flat buffer, in place.

    Args:
        program: what this rank does.
        buffer: one-dimensional and contiguous; its memory must stay where it is until ``free``.
        chunks: the borders of its chunks (``Partition.chunks``).
        transport: where the peers are.
        op: how ``combine`` receives are combined (``sum``, ``prod``, ``min``, ``max``).
        segment: the largest number of elements in one message.
        tag: marks the messages of this plan, the same on all ranks.
        staged: whether messages pass through pinned host memory, because the transport does not take the buffer's.
        slab: where landing places are taken from, unless they are staged.

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
    ) -> None:
        self.op, self.settled = op, event_for(buffer)
        script = write_script(messages(program, chunks, segment), window, staged=staged)
        self.places = Places(
            script, program.rank, buffer, Slab.pinned(buffer) if staged else slab or Slab.beside(buffer)
        )
        places = self.places
        requests = [
            (transport.recv_init if message.incoming else transport.send_init)(places.place(number), message.peer, tag)
            for number, message in enumerate(script.messages)
        ]
        super().__init__(program.rank, list(self.prepared(script, requests)), requests)

    def prepared(self, script: Script, requests: Sequence[Request]) -> Iterator[Prepared]:
        """See [Note: Host and device]; on a host each entry of the script is one part, and there is no event."""
        launched = True  # the caller may have launched what wrote the buffer
        for entry in script.entries:
            waits = [requests[number] for number in entry.waits]
            names = [described(script.messages[number]) for number in entry.waits]
            actions = [self.places.fold(entry.folds, self.op)] if entry.folds else []
            actions += [lift for number in entry.starts for lift in self.places.lift(number)]
            starts = [requests[number].Start for number in entry.starts]
            launched = launched or bool(actions)
            if self.settled is not None and launched and starts:
                yield prepare(waits, names, [*actions, self.settled.record])
                on_device = (self.settled.synchronize,), (self.settled.done,), ("waiting for the device",)
                yield Prepared(*on_device, tuple(starts))
                launched = False
            else:
                yield prepare(waits, names, [*actions, *starts])

    def free(self) -> None:
        settle(self.places.buffer)  # kernels may still read the slots
        super().free()


def described(message: Message) -> str:
    """A message, for errors."""
    (step, segment), verb = message.key, "receiving from" if message.incoming else "sending to"
    return f"step {step}, segment {segment}, {verb} rank {message.peer}"
