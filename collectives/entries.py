"""A run as a list of entries: wait for these messages, then do those things. What all plans of ours boil down to.

Making the entries (``execute.py``, ``shared.py``) makes every request, every view and every bound call; a run then only
starts, waits and calls. No array is sliced and nothing grows while it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dear_mpi.collectives.errors import TransportError
from dear_mpi.collectives.transport import Request

__all__ = ["Action", "Prepared", "Run", "prepare", "straight"]

Action = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """Wait for all of these, then do all of those.

    ``awaited`` says what the waits are for, and ``tests`` asks the same without blocking.
    """

    waits: tuple[Action, ...]
    tests: tuple[Callable[[], bool], ...]
    awaited: tuple[str, ...]
    actions: tuple[Action, ...]


def prepare(requests: Sequence[Request], names: Sequence[str], actions: Sequence[Action]) -> Prepared:
    """An entry that waits for messages."""
    waits, tests = [request.Wait for request in requests], [request.Test for request in requests]
    return Prepared(tuple(waits), tuple(tests), tuple(names), tuple(actions))


def straight(entries: Sequence[Prepared]) -> list[Action]:
    """All calls of the entries, in their order."""
    return [call for entry in entries for call in (*entry.waits, *entry.actions)]


class Run:
    """Goes through entries, waiting or polling."""

    def __init__(self, rank: int, entries: Sequence[Prepared], requests: Sequence[Request]) -> None:
        self.rank, self.entries, self.requests = rank, entries, requests
        self.calls = straight(entries)
        self.position = self.waited = 0

    def start(self) -> None:
        """Begin a run: do what depends on nothing, which is the first entry."""
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

    def whole(self) -> None:
        """A run from its start to its end, call by call: small collectives take a third less time so than in entries.

        Raises:
            TransportError: as ``wait``.
        """
        calls, done = self.calls, 0
        try:
            for call in calls:
                call()
                done += 1
        except Exception as error:
            self.position = 0
            while done >= (length := len(self.entries[self.position].waits + self.entries[self.position].actions)):
                done, self.position = done - length, self.position + 1
            self.waited = done
            raise self.failure(error) from error
        self.position = len(self.entries)

    def finish(self, entry: Prepared) -> None:
        """The waits of an entry are over: do the rest of it."""
        self.position += 1
        self.waited = 0
        for action in entry.actions:
            action()

    def failure(self, error: Exception) -> TransportError:
        """Say which message an error struck: the one that is waited for, or those that were just started."""
        entry = self.entries[min(self.position, len(self.entries) - 1)]
        if self.waited < len(entry.awaited):
            return TransportError(f"rank {self.rank}, {entry.awaited[self.waited]}: {error}")
        return TransportError(f"rank {self.rank}, after {self.position} of {len(self.entries)}: {error}")

    def free(self) -> None:
        """Give the requests back; the run must not be under way."""
        for request in self.requests:
            request.Free()
        self.requests, self.entries, self.calls = (), (), []
