"""Carry out instructions: wait for these messages, then do those things. All plans run in this way.

The runners (``runners/messages.py``, ``runners/shared.py``) make every request, every view and every bound call in
advance. A run then only starts, waits and calls. It slices no array and allocates nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dear_mpi.collectives.program.errors import TransportError
from dear_mpi.collectives.transports.transport import Request
from dear_mpi.kernels.array import Array

__all__ = ["Action", "BoundInstruction", "InstructionRun", "bind", "straight"]

Action = Callable[[], object]


@dataclass(frozen=True)
class BoundInstruction:
    """Wait for all of these, then do all of those.

    ``awaited`` says what the waits are for, and ``tests`` asks the same without blocking.
    """

    waits: tuple[Action, ...]
    tests: tuple[Callable[[], bool], ...]
    awaited: tuple[str, ...]
    actions: tuple[Action, ...]


def bind(requests: Sequence[Request], names: Sequence[str], actions: Sequence[Action]) -> BoundInstruction:
    """An instruction that waits for messages."""
    waits, tests = [request.Wait for request in requests], [request.Test for request in requests]
    return BoundInstruction(tuple(waits), tuple(tests), tuple(names), tuple(actions))


def straight(instructions: Sequence[BoundInstruction]) -> list[Action]:
    """All calls of the instructions, in their order."""
    return [call for instruction in instructions for call in (*instruction.waits, *instruction.actions)]


class InstructionRun:
    """Goes through instructions, waiting or polling."""

    def __init__(self, rank: int, instructions: Sequence[BoundInstruction], requests: Sequence[Request]) -> None:
        self.rank, self.instructions, self.requests = rank, instructions, requests
        self.calls = straight(instructions)
        self.position = self.waited = 0

    def start(self) -> None:
        """Begin a run: do what depends on nothing, which is the first instruction."""
        self.position = self.waited = 0
        if not self.instructions[0].waits:
            self.finish(self.instructions[0])

    def advance(self) -> bool:
        """Do what can be done without blocking; return whether the run is over."""
        try:
            while self.position < len(self.instructions):
                instruction = self.instructions[self.position]
                for test in instruction.tests[self.waited :]:
                    if not test():
                        return False
                    self.waited += 1
                self.finish(instruction)
        except Exception as error:
            raise self.failure(error) from error
        return True

    def wait(self) -> None:
        """Block until the run is over.

        Raises:
            TransportError: a message did not get through; it names the step and the peer.
        """
        try:
            for instruction in itertools.islice(self.instructions, self.position, None):
                for wait in instruction.waits[self.waited :]:
                    wait()
                    self.waited += 1
                self.finish(instruction)
        except Exception as error:
            raise self.failure(error) from error

    def whole(self) -> None:
        """A whole run, call by call, which takes small collectives a third less time; raises as ``wait``."""
        calls, done = self.calls, 0
        try:
            for call in calls:
                call()
                done += 1
        except Exception as error:
            lengths = [len(straight([instruction])) for instruction in self.instructions]
            places = [(position, number) for position, length in enumerate(lengths) for number in range(length)]
            self.position, self.waited = places[done]
            raise self.failure(error) from error
        self.position = len(self.instructions)

    def finish(self, instruction: BoundInstruction) -> None:
        """The waits of an instruction are over: do the rest of it."""
        self.position += 1
        self.waited = 0
        for action in instruction.actions:
            action()

    def failure(self, error: Exception) -> TransportError:
        """Say which message an error struck: the one that is waited for, or those that were just started."""
        instruction = self.instructions[min(self.position, len(self.instructions) - 1)]
        if self.waited < len(instruction.awaited):
            return TransportError(f"rank {self.rank}, {instruction.awaited[self.waited]}: {error}")
        return TransportError(
            f"rank {self.rank}, after instruction {self.position} of {len(self.instructions)}: {error}"
        )

    def on(self, buffer: Array) -> InstructionRun | None:
        """The same on another buffer of this count and type, made without the other ranks; None if they are needed.

        The two share side buffers, so the runs of one must be over when those of the other begin.
        """
        return None

    def free(self) -> None:
        """Give the requests back; the run must not be under way."""
        for request in self.requests:
            request.Free()
        self.requests, self.instructions, self.calls = (), (), []
