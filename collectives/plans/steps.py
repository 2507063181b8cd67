"""Split the time in a collective, from all ranks' notes: waiting, transfer, combining, copying.

    rank 1   started its end of the message:            |
    rank 2   blocked in its wait:           |- waiting -|- transfer -|- combining -|

A wait is *waiting* until the peer starts its end of the message, then *transfer*, as are calls that start messages.
Without the peer's notes it is *either*. *Combining* and *copying* work on a message's data. A library call is *whole*.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from dear_mpi.collectives.plans.notes import Noted, Part

KINDS = ("waiting", "transfer", "combining", "copying")
OTHERS = ("either", "whole")
AS = {"starting": "transfer", "device": "waiting"}
Ranks: TypeAlias = Mapping[int, Noted]
"""One collective on its ranks, on one clock."""

End: TypeAlias = tuple[int, int, int | None, int, bool]
"""An end of a message: rank, peer, step, number in the step, incoming."""


class StepSpan(NamedTuple):
    """Seconds of one activity; ``peer`` is the awaited or served rank."""

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
    assert part.peer is not None, "it is an end of a message"
    return part.peer, rank, part.step, part.number, not part.incoming


def starts_of(ranks: Ranks) -> dict[End, float]:
    return {
        end_of(rank, part): begin_s
        for rank, noted in ranks.items()
        for part, begin_s, _ in noted.calls()
        if part.kind == "starting"
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
                assert part.peer is not None, "a message has a sender"
                yield Flow(part.peer, begin_s, rank, end_s, part)


def said_of(span: StepSpan, noted: Noted) -> dict[str, Any]:
    part = span.part
    known: dict[str, Any] = {**noted.said, "number": noted.number, "step": part.step, "peer": part.peer}
    if part.kind in ("starting", "ending"):
        known |= {"message": part.number, "direction": "receive" if part.incoming else "send"}
    return known | {"chunk": part.chunk, "bytes": part.nbytes, "call": part.kind}
