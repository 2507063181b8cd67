"""Record when each call of a rank's last collectives began and ended, and split that time from all ranks' notes.

    calls of a run   | start a message | wait for another | combine it | start the next ...
    times noted      t0               t1                 t2           t3

One clock reading after each call suffices: 0.1 us, and 0.6 us per run. A ring buffer keeps the last seconds, so
training always records and has them when a rank stalls or fails.

    rank 1   started its end of the message:            |
    rank 2   blocked in its wait:           |- waiting -|- transfer -|- combining -|

A wait is *waiting* until the peer starts its end of the message, then *transfer*, as are calls that start messages.
Without the peer's notes it is *either*. *Combining* and *copying* work on a message's data. A library call is *whole*.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

MOST_CALLS = 1 << 17  # 1 MiB of times
WAITS = ("ending", "device", "whole")
KINDS = ("waiting", "transfer", "combining", "copying")
AS = {"starting": "transfer", "device": "waiting"}


class Part(NamedTuple):
    kind: str  # starting or ending (a message), combining, copying, device (wait), whole (library call)
    step: int | None = None
    number: int = 0  # number in the step and lane
    peer: int | None = None
    incoming: bool = False
    chunk: int | str = ""
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


Ranks: TypeAlias = Mapping[int, Noted]
"""One collective on its ranks, on one clock."""

End: TypeAlias = tuple[int, int, int | None, int, bool]
"""An end of a message: rank, peer, step, number in the step, incoming."""


class StepSpan(NamedTuple):
    kind: str
    step: int | None
    peer: int | None
    begin_s: float
    end_s: float
    part: Part

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


class Flow(NamedTuple):
    """A message, from the sender's start to the receiver's end."""

    sender: int
    begin_s: float
    receiver: int
    end_s: float
    part: Part

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def end_of(rank: int, part: Part) -> End:
    assert part.peer is not None, "it is an end of a message"
    return rank, part.peer, part.step, part.number, part.incoming


def other_end(rank: int, part: Part) -> End:
    rank, peer, step, number, incoming = end_of(rank, part)
    return peer, rank, step, number, not incoming


def starts_of(ranks: Ranks) -> dict[End, float]:
    """Return when each message was started; raising a counter (without a peer) tells all other ranks."""
    return {
        end_of(rank, part._replace(peer=peer)): begin_s
        for rank, noted in ranks.items()
        for part, begin_s, _ in noted.calls()
        if part.kind == "starting"
        for peer in (set(ranks) - {rank} if part.peer is None else {part.peer})
    }


def spans_of(rank: int, noted: Noted, starts: Mapping[End, float]) -> Iterator[StepSpan]:
    """Yield a rank's calls; waits are cut at the peer's start."""
    for part, begin_s, end_s in noted.calls():
        kind = AS.get(part.kind, part.kind)
        if kind == "ending":
            peers_s = starts.get(other_end(rank, part))
            if peers_s is None:
                kind = "either"
            else:
                kind, until_s = "transfer", min(max(begin_s, peers_s), end_s)
                if until_s > begin_s:
                    yield StepSpan("waiting", part.step, part.peer, begin_s, until_s, part)
                    begin_s = until_s
        yield StepSpan(kind, part.step, part.peer, begin_s, end_s, part)


def flows_of(ranks: Ranks, starts: Mapping[End, float]) -> Iterator[Flow]:
    for rank, noted in ranks.items():
        for part, _, end_s in noted.calls():
            if part.kind == "ending" and part.incoming and (begin_s := starts.get(other_end(rank, part))) is not None:
                yield Flow(end_of(rank, part)[1], begin_s, rank, end_s, part)


def said_of(span: StepSpan, noted: Noted) -> dict[str, Any]:
    part = span.part
    known: dict[str, Any] = {**noted.said, "number": noted.number, "step": part.step, "peer": part.peer}
    if part.kind in ("starting", "ending"):
        known |= {"message": part.number, "direction": "receive" if part.incoming else "send"}
    return known | {"chunk": part.chunk, "bytes": part.nbytes, "call": part.kind}
