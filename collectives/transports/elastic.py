"""Outlive ranks: survivors of a death continue on a smaller transport.

    a call fails: revoke --> agree(0) --> shrink --> agree(mask of the states that this rank keeps) --> continue
    all is done:             agree(1) --> end, unless a rank votes 0 or has died: then shrink ...

Only ``agree`` has one result on all ranks; any other call may succeed on some ranks and fail on others. A rank that is
done and one that repairs begin with the same ``agree``: it must not meet the one inside the others' ``shrink``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from dear_mpi.collectives.program.errors import AgreedError, RanksLost, lost_in
from dear_mpi.collectives.transports.transport import Transport, Wrapper

T = TypeVar("T")
BITS = 31  # of a mask


class Shrinking(Transport, Protocol):
    """A transport whose calls raise RanksLost after a death, at the latest when a survivor revokes it."""

    members: tuple[int, ...]  # the ranks' numbers in the whole job

    def revoke(self) -> None:
        """Let all calls of all ranks fail, except ``agree`` and ``shrink``; any thread may call."""

    def agree(self, mask: int) -> int:
        """Collective: return the bitwise AND of all masks, or raise RanksLost on all ranks."""

    def shrink(self) -> Shrinking:
        """Collective: return a transport of the living ranks, in their order."""

    def die(self, message: str) -> None:
        """End only this rank, with a message."""


class Elastic(Wrapper[Shrinking]):
    """The present transport of a job whose ranks may die; ``repair`` replaces it by a smaller one.

    Plans and requests belong to the transport that made them.
    """

    met = False  # whether the others know that this transport is to be replaced

    def send_note(self, note: Any, tag: int) -> bool:
        return False  # a rank that leaves is lost

    def received_notes(self, tag: int) -> list[Any]:
        return []

    def repair(self, mask: int = 0) -> int:
        """Continue with the survivors; return the bitwise AND of their masks. Collective.

        AgreedError: no rank has died, so a repetition would fail again.
        """
        before = self.below.members
        self.below.revoke()
        if not self.met:
            with suppress(RanksLost):
                self.below.agree(0)
        while True:
            self.below, self.met = self.below.shrink(), False
            with suppress(RanksLost):
                mask = self.below.agree(mask)
                break
        if self.below.members == before:
            raise AgreedError("messages were lost, though all ranks are alive")
        return mask

    def commit(self) -> None:
        """Agree that all is done, or raise RanksLost on all ranks; a repair follows. Collective."""
        try:
            self.met = not self.below.agree(1)
        except RanksLost:
            self.met = True
            raise
        if self.met:
            raise RanksLost("another rank was lost")

    def complete(self, call: Callable[[], T]) -> T:
        """Return ``call()``, repeated on the survivors if a rank dies before all have completed it. Collective."""
        while True:
            try:
                found = call()
                self.commit()
                return found
            except Exception as error:
                if lost_in(error) is None:
                    raise
            self.repair()


def present(transport: Transport) -> Elastic | None:
    """Return the elastic transport below wrappers, if there is one."""
    below: object = transport
    while isinstance(below, Wrapper) and not isinstance(below, Elastic):
        below = below.below
    return below if isinstance(below, Elastic) else None
