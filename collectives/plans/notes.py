"""Notes of what a rank did inside its last collectives: when each call of a run began and ended.

    calls of a run   | start a message | wait for another | combine it | start the next ...
    times noted      t0               t1                 t2           t3

The calls of a run follow one another, so one look at the clock after each is enough: 0.1 us for a call, and 0.6 us for
a run. What calls do is known in advance (``InstructionRun.parts``). Notes are a ring: a new run pushes the oldest one
out. So they are always on in training, and the last seconds are there when a rank stalls or fails.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MOST_CALLS = 1 << 17  # that are kept: 1 MiB of times
WAITS = ("ending", "device", "whole")  # kinds of parts that may block


class Part(NamedTuple):
    """What a call of a run does."""

    kind: str  # starting or ending (a message), combining, copying; device (waiting for it); whole (the library's call)
    step: int | None = None
    number: int = 0  # of the message, between these two ranks in the step
    peer: int | None = None
    incoming: bool = False
    chunk: int | str = ""  # or several: 3..5
    nbytes: int = 0  # none in a barrier's message

    def __str__(self) -> str:
        """What a rank waits for in it; nothing where it does something itself."""
        if self.kind != "ending":
            return {"device": "the device", "whole": "the other ranks"}.get(self.kind, "")
        message = f"step {self.step}, message {self.number}, " if self.nbytes else "barrier, "
        verb = "receiving from" if self.incoming else "sending to"
        return f"{message if self.step is not None else ''}{verb} rank {self.peer}"


@dataclass(frozen=True)
class Noted:
    """A run of a collective on one rank: call ``k`` lasted from ``times[k]`` to ``times[k + 1]``, in seconds.

    A run that is not over has fewer times. ``number`` is its number among those noted, alike on all ranks; ``said`` has
    what there is to say of it, such as ``collective``, ``algorithm`` and ``bucket``.
    """

    number: int
    said: Mapping[str, Any]
    parts: Sequence[Part]
    times: Sequence[float]
    under_way: bool = False  # whether the last time is no end, but when it was looked at

    @property
    def begin_s(self) -> float:
        return self.times[0]

    @property
    def end_s(self) -> float:
        return self.times[-1]

    def calls(self) -> Iterator[tuple[Part, float, float]]:
        """Each with its begin and its end."""
        yield from zip(self.parts, self.times, self.times[1:], strict=False)

    def at(self, times: Sequence[float], *, under_way: bool = False) -> Noted:
        return replace(self, times=times, under_way=under_way)

    def earlier(self, seconds: float) -> Noted:
        """The same by a clock that shows so much less."""
        return replace(self, times=array("d", (each - seconds for each in self.times)))


class Notes:
    """The last runs of a rank, of about so many calls in all. One thread writes them, in one order on all ranks."""

    def __init__(self, most: int = MOST_CALLS) -> None:
        self.ring: deque[tuple[int, Mapping[str, Any], Sequence[Part], array[float]]] = deque()
        self.room, self.count = most, 0

    def begin(self, said: Mapping[str, Any], parts: Sequence[Part]) -> array[float]:
        """A run begins; where its times are to be appended."""
        times = array("d")  # no list, which the garbage collector would look through
        self.count += 1
        self.ring.append((self.count, said, parts, times))  # in a third of the time that a ``Noted`` takes
        self.room -= len(parts)
        while self.room < 0 and len(self.ring) > 1:
            self.room += len(self.ring.popleft()[2])
        return times

    @property
    def runs(self) -> list[Noted]:
        """As they are now; another thread may go on with the last one. What has not begun is left out."""
        taken = [(number, said, parts, times[:]) for number, said, parts, times in list(self.ring)]
        return [Noted(*each) for each in taken if each[3]]

    def since(self, begin_s: float) -> list[Noted]:
        """Runs that ended after that; what was before is not looked at, which would take long."""
        found = list[Noted]()
        for number, said, parts, times in reversed(list(self.ring)):
            taken = times[:]
            if taken and taken[-1] <= begin_s:
                break
            found += [Noted(number, said, parts, taken)] if taken else []
        return found[::-1]
