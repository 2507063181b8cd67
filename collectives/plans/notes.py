"""Record when each call of a rank's last collectives began and ended.

    calls of a run   | start a message | wait for another | combine it | start the next ...
    times noted      t0               t1                 t2           t3

One clock reading after each call suffices: 0.1 us, and 0.6 us per run. A ring buffer keeps the last seconds, so
training always records and has them when a rank stalls or fails. ``dear_mpi/training/events/spans.py`` compares the
notes of all ranks.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MOST_CALLS = 1 << 17  # 1 MiB of times
WAITS = ("ending", "device", "whole")
KINDS = ("waiting", "transfer", "combining", "copying")


class Part(NamedTuple):
    kind: str  # starting or ending (a message), combining, copying, device (wait), whole (library call)
    step: int | None = None
    number: int = 0  # number in the step and lane
    peer: int | None = None
    incoming: bool = False
    chunk: str = ""
    nbytes: int = 0

    def __str__(self) -> str:
        if self.kind != "ending":
            return {"device": "the device", "whole": "the other ranks"}.get(self.kind, "")
        message = f"step {self.step}, message {self.number}, " if self.nbytes else "barrier, "
        verb = "receiving from" if self.incoming else "sending to"
        return f"{message if self.step is not None else ''}{verb} rank {self.peer}"


@dataclass(frozen=True)
class Noted:
    """A rank's run: call ``k`` lasted from ``times[k]`` to ``times[k + 1]``, in seconds; a running one has fewer times.

    ``number`` counts runs, equally on all ranks; ``said``: labels such as ``algorithm`` and ``bucket``.
    """

    number: int
    said: Mapping[str, Any]
    parts: Sequence[Part]
    times: Sequence[float]

    @property
    def begin_s(self) -> float:
        return self.times[0]

    @property
    def end_s(self) -> float:
        return self.times[-1]

    def calls(self) -> Iterator[tuple[Part, float, float]]:
        yield from zip(self.parts, self.times, self.times[1:], strict=False)

    def earlier(self, seconds: float) -> Noted:
        return replace(self, times=array("d", (each - seconds for each in self.times)))


class Notes:
    """A rank's last runs, up to ``most`` calls; one thread writes, others may read."""

    def __init__(self, most: int = MOST_CALLS) -> None:
        self.ring: deque[tuple[int, Mapping[str, Any], Sequence[Part], array[float]]] = deque()
        self.room, self.count = most, 0

    def begin(self, said: Mapping[str, Any], parts: Sequence[Part]) -> array[float]:
        times = array("d")  # a list would be scanned by the garbage collector
        self.count += 1
        self.ring.append((self.count, said, parts, times))  # three times as fast as a ``Noted``
        self.room -= len(parts)
        while self.room < 0 and len(self.ring) > 1:
            self.room += len(self.ring.popleft()[2])
        return times

    @property
    def runs(self) -> list[Noted]:
        return self.since(-math.inf)

    def since(self, begin_s: float) -> list[Noted]:
        """Return begun runs that ended later."""
        found = list[Noted]()
        for number, said, parts, times in reversed(list(self.ring)):
            taken = times[:]
            if taken and taken[-1] <= begin_s:
                break
            found += [Noted(number, said, parts, taken)] if taken else []
        return found[::-1]
