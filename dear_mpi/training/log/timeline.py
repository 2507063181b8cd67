"""The last iterations of a log as a timeline's spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from dear_mpi.training.log.log import Event, Log, Record
from dear_mpi.training.log.spans import COMPUTE, KINDS, WIRE, Iteration, Rank, Span, shortened

Clock: TypeAlias = Callable[[str, Any], float]  # the seconds of a mark of a lane


def rank_of(log: Log, name: str, layers: Sequence[str], clock: Clock, *, kept: int) -> Rank:
    """What one rank did in the last iterations. To be called while nothing is under way.

    Args:
        layers: the name of each use of a layer, in the order of the forward pass.
        kept: how many iterations, of those that are in the log.
    """
    records = [record for record in log.records if record.end is not None][-kept:]
    iterations = tuple(Iteration(each.number, clock(COMPUTE, each.begin), clock(COMPUTE, each.end)) for each in records)
    found = [span for record in log.records for span in spans_of(record, layers, clock)]
    begin_s = iterations[0].begin_s
    shown = (span for span in found if span.end_s > max(begin_s, span.begin_s))
    return Rank(name, iterations, tuple(sorted(shown, key=lambda span: span.begin_s)))


def spans_of(record: Record, layers: Sequence[str], clock: Clock) -> Iterator[Span]:
    """Of an iteration, and of what came after it."""
    for kind in ("forward", "backward"):
        passed = [event for event in record.within if event.kind == kind]
        for event, layer in zip(passed, places(kind, layers, len(passed)), strict=True):
            yield span(COMPUTE, kind, f"{kind} {layer}", event, clock)
    others = (event for event in (*record.within, *record.after) if event.kind in ("wait", "update"))
    for lane, events in ((COMPUTE, others), (WIRE, record.wire)):
        for event in events:
            yield span(lane, kind_of(event), said(event), event, clock)


def said(event: Event) -> str:
    """What is neither forward nor backward, in words."""
    if event.kind == "update":
        return f"update of bucket {event.number}"
    return f"{'wait for ' * (event.kind == 'wait')}{event.what}"


def span(lane: str, kind: str, name: str, event: Event, clock: Clock) -> Span:
    return Span(lane, kind, shortened(name), clock(lane, event.begin), clock(lane, event.end))


def kind_of(event: Event) -> str:
    """One of ``KINDS``: a second all_gather is one as well."""
    kind = event.kind.rpartition(" ")[2]
    return kind if kind in KINDS else "other"


def places(kind: str, layers: Sequence[str], count: int) -> Iterator[str]:
    """The layers of so many uses in the order of a pass, with the part of the batch if there are several."""
    ordered = layers if kind == "forward" else layers[::-1]
    for place in range(count):
        part, use = divmod(place, len(ordered))
        yield ordered[use] + (f", part {part + 1} of {count // len(ordered)}" if count > len(ordered) else "")
