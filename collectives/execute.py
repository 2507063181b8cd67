"""Run one rank's program on one buffer: the script of a plan, compiled to prepared calls.

Compiling makes every request and every view; a run then only starts, waits and combines. No array is sliced and
nothing grows while it runs.

[Note: Host and device]
On a GPU, calls that combine and copy only launch kernels, on the current stream of the thread that runs the plan.
Whatever is started afterwards may read what they write, or overwrite what they still read, so every start is
preceded by a wait on an event recorded behind all that was launched so far (``Execution.settled``), also by the
caller before the run. Here, and in ``native.py`` for the library's own collectives, a buffer passes from a stream to
MPI, nowhere else. To the loops below the event is one more thing to wait for. What a run launches last is not waited
for: it is in order on that stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dear_mpi.collectives.errors import TransportError
from dear_mpi.collectives.messages import Message, messages
from dear_mpi.collectives.places import Action, Places
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.script import WINDOW, Script, write_script
from dear_mpi.collectives.transport import Request, Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import event_for, settle
from dear_mpi.kernels.slab import Slab

__all__ = ["Execution"]


@dataclass(frozen=True)
class Prepared:
    """A part of the script with everything looked up: wait for all of these, then do all of those.

    ``awaited`` says what the waits are for (None: the device), and ``tests`` asks the same without blocking.
    """

    waits: tuple[Action, ...]
    tests: tuple[Callable[[], bool], ...]
    awaited: tuple[Message | None, ...]
    actions: tuple[Action, ...]


class Execution:
    """A program on a flat buffer, in place.

    Args:
        program: what this rank does.
        buffer: one-dimensional and contiguous; its memory must stay where it is until ``free``.
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
        transport: Transport,
        *,
        op: str,
        segment: int,
        tag: int,
        staged: bool = False,
        slab: Slab | None = None,
        window: int = WINDOW,
    ) -> None:
        self.transport, self.op, self.tag = transport, op, tag
        self.position = self.waited = 0
        self.settled = event_for(buffer)
        script = write_script(messages(program, buffer.size, segment), window, staged=staged)
        self.places = Places(script, buffer, Slab.pinned(buffer) if staged else slab or Slab.beside(buffer))
        self.requests = [self.request(number, message) for number, message in enumerate(script.messages)]
        self.entries = list(self.prepared(script))

    def request(self, number: int, message: Message) -> Request:
        init = self.transport.recv_init if message.incoming else self.transport.send_init
        return init(self.places.place(number), message.peer, self.tag)

    def prepared(self, script: Script) -> Iterator[Prepared]:
        """See [Note: Host and device]; on a host each entry of the script is one part, and there is no event."""
        launched = True  # the caller may have launched what wrote the buffer
        for entry in script.entries:
            awaited = [self.requests[number] for number in entry.waits]
            waits, tests = [request.Wait for request in awaited], [request.Test for request in awaited]
            names: list[Message | None] = [script.messages[number] for number in entry.waits]
            actions = [] if entry.fold is None else [self.places.fold(entry.fold, self.op)]
            actions += [lift for number in entry.starts for lift in self.places.lift(number)]
            starts = [self.requests[number].Start for number in entry.starts]
            launched = launched or bool(actions)
            if self.settled is not None and launched and starts:
                yield Prepared(tuple(waits), tuple(tests), tuple(names), (*actions, self.settled.record))
                waits, tests, names, actions = [self.settled.synchronize], [self.settled.done], [None], []
                launched = False
            yield Prepared(tuple(waits), tuple(tests), tuple(names), (*actions, *starts))

    def start(self) -> None:
        """Begin a run: post what depends on nothing, which is the first entry."""
        self.position = self.waited = 0
        if not self.entries[0].waits:
            self.finish(self.entries[0])

    def advance(self) -> bool:
        """Do what can be done without blocking; whether the run is over."""
        try:
            while self.position < len(self.entries):
                entry = self.entries[self.position]
                for test in entry.tests[self.waited :]:
                    if not test():
                        return False
                    self.waited += 1
                self.finish(entry)
        except Exception as error:
            raise self.failure(error) from error
        return True

    def wait(self) -> None:
        """Block until the run is over.

        Raises:
            TransportError: a message did not get through; it names the step and the peer.
        """
        try:
            for entry in itertools.islice(self.entries, self.position, None):
                for wait in entry.waits[self.waited :]:
                    wait()
                    self.waited += 1
                self.finish(entry)
        except Exception as error:
            raise self.failure(error) from error

    def finish(self, entry: Prepared) -> None:
        """The waits of an entry are over: do the rest of it."""
        self.position += 1
        self.waited = 0
        for action in entry.actions:
            action()

    def failure(self, error: Exception) -> TransportError:
        """Say which message an error struck: the one that is waited for, or those that were just started."""
        entry = self.entries[min(self.position, len(self.entries) - 1)]
        if self.waited >= len(entry.awaited):
            return TransportError(f"rank {self.transport.rank}, after {self.position} of {len(self.entries)}: {error}")
        message = entry.awaited[self.waited]
        if message is None:
            return TransportError(f"rank {self.transport.rank}, waiting for the device: {error}")
        (step, segment), verb = message.key, "receiving from" if message.incoming else "sending to"
        place = f"rank {self.transport.rank}, step {step}, segment {segment}, {verb} rank {message.peer}"
        return TransportError(f"{place}: {error}")

    def free(self) -> None:
        settle(self.places.buffer)  # kernels may still read the slots
        for request in self.requests:
            request.Free()
        self.requests, self.entries = [], []
