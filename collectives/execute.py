"""Run one rank's program on one buffer: the script of a plan, compiled to prepared calls.

Compiling makes every request and every view; a run then only starts, waits and combines. No array is sliced and
nothing grows while it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.collectives.errors import TransportError
from dear_mpi.collectives.messages import Message, messages
from dear_mpi.collectives.program import Program
from dear_mpi.collectives.script import WINDOW, Entry, Script, write_script
from dear_mpi.collectives.transport import Request, Transport
from dear_mpi.kernels.accumulate import accumulator, copier
from dear_mpi.kernels.array import Array, array_module

__all__ = ["Execution"]

Action = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """An ``Entry`` of the script with everything looked up: calls of requests, and the bound call that folds in.

    ``awaited`` says what the waits are for, and ``tests`` asks the same requests without blocking.
    """

    waits: tuple[Action, ...]
    tests: tuple[Callable[[], bool], ...]
    awaited: tuple[Message, ...]
    fold: Action | None
    starts: tuple[Action, ...]


class Execution:
    """A program on a flat buffer, in place.

    Args:
        program: what this rank does.
        buffer: one-dimensional and contiguous; its memory must stay where it is until ``free``.
        transport: where the peers are.
        op: how ``combine`` receives are combined (``sum``, ``prod``, ``min``, ``max``).
        segment: the largest number of elements in one message.
        tag: marks the messages of this plan, the same on all ranks.

    Beside the buffer it holds at most ``window`` segments for each peer that sends data to combine; more only where a
    step sends and receives the same chunks in other portions, which none of our algorithms does.
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
        window: int = WINDOW,
    ) -> None:
        self.buffer, self.transport, self.op, self.tag = buffer, transport, op, tag
        self.position = self.waited = 0
        script = write_script(messages(program, buffer.size, segment), window)
        self.landings = self.landing_places(script)
        self.requests = [self.request(number, message) for number, message in enumerate(script.messages)]
        self.entries = [self.prepared(script, entry) for entry in script.entries]

    def prepared(self, script: Script, entry: Entry) -> Prepared:
        awaited = [self.requests[number] for number in entry.waits]
        return Prepared(
            tuple(request.Wait for request in awaited),
            tuple(request.Test for request in awaited),
            tuple(script.messages[number] for number in entry.waits),
            None if entry.fold is None else self.fold(entry.fold, script.messages[entry.fold]),
            tuple(self.requests[number].Start for number in entry.starts),
        )

    def landing_places(self, script: Script) -> dict[int, Array]:
        """Where receives land that do not land in the buffer: one array per slot, as long as its longest message."""
        counts = {number: script.messages[number].stop - script.messages[number].start for number in script.landing}
        longest: dict[tuple[int, int], int] = {}
        for number, slot in script.landing.items():
            longest[slot] = max(longest.get(slot, 0), counts[number])
        empty = array_module(self.buffer).empty
        slots = {slot: empty(count, self.buffer.dtype) for slot, count in longest.items()}
        return {number: slots[slot][: counts[number]] for number, slot in script.landing.items()}

    def request(self, number: int, message: Message) -> Request:
        part = self.buffer[message.start : message.stop]
        if message.incoming:
            return self.transport.recv_init(self.landings.get(number, part), message.peer, self.tag)
        return self.transport.send_init(part, message.peer, self.tag)

    def fold(self, number: int, message: Message) -> Action:
        part = self.buffer[message.start : message.stop]
        landed = self.landings[number]
        return accumulator(part, landed, self.op) if message.combine else copier(part, landed)

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
        if entry.fold is not None:
            entry.fold()
        for start in entry.starts:
            start()

    def failure(self, error: Exception) -> TransportError:
        """Say which message an error struck: the one that is waited for, or those that were just started."""
        entry = self.entries[min(self.position, len(self.entries) - 1)]
        if self.waited >= len(entry.awaited):
            return TransportError(f"rank {self.transport.rank}, after {self.position} of {len(self.entries)}: {error}")
        message = entry.awaited[self.waited]
        (step, segment), verb = message.key, "receiving from" if message.incoming else "sending to"
        place = f"rank {self.transport.rank}, step {step}, segment {segment}, {verb} rank {message.peer}"
        return TransportError(f"{place}: {error}")

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests, self.entries = [], []
