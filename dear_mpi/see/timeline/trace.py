"""A timeline as a Chrome trace, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Each rank of each run is a process, and each lane of it a thread. Times are in microseconds; each run begins at 0. A
message is an arrow: it leaves the span in which its sender starts it, and arrives at the end of its receiver's wait.

Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dear_mpi.collectives.plans.steps import Flow
from dear_mpi.training.log.spans import LANES, STEPS, Iteration, Span, Timeline

DIGITS = 3  # of a microsecond: as many as a clock has
INSTANT_US = 10**-DIGITS


def trace(timeline: Timeline) -> dict[str, Any]:
    """The JSON object: names first, then events in the order of their times."""
    names, events = [], []
    most = max(len(run.ranks) for run in timeline.runs)
    identities = itertools.count(1)
    for number, run in enumerate(timeline.runs):
        found, steps = run.inside, dict[int, list[dict[str, Any]]]()
        for process, rank in enumerate(run.ranks, number * most):
            title = rank.name if len(timeline.runs) == 1 else f"{run.name}: {rank.name}"
            names += list(metadata(process, title, run.lanes))
            steps[rank.number] = list(spans(process, found.spans[rank.number], run.begin_s))
            events += [*spans(process, rank.spans, run.begin_s), *steps[rank.number]]
            events += list(marks(process, rank.iterations, run.begin_s))
        for flow in found.flows:
            events += list(arrow(flow, next(identities), steps, run.begin_s))
    said: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    said |= {"runs": [run.name for run in timeline.runs], "sizes": [run.size for run in timeline.runs]}
    said |= {"clocks": clocks(timeline), "clock_uncertainty_us": [in_us(run.uncertainty_s) for run in timeline.runs]}
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": said | timeline.facts}


def clocks(timeline: Timeline) -> str:
    """What there is to know of times on different ranks, and of different runs."""
    shown = {(len(run.ranks), run.size) for run in timeline.runs}
    few = "".join(f"; {count} of {size} ranks" for count, size in sorted(shown) if 1 < count < size)
    return f"{clock_of(timeline)}; each run begins at 0{few}"


def clock_of(timeline: Timeline) -> str:
    if not timeline.live:
        return "of the virtual fabric"
    worst_us = max(run.uncertainty_s for run in timeline.runs) * 1e6
    return f"that of rank 0, within {worst_us:.1f} us" if worst_us else "one for all ranks"


def metadata(process: int, title: str, lanes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The names of a rank and of its lanes, and their order."""
    rows = [("process", 0, title, process), *(("thread", thread, lane, thread) for thread, lane in enumerate(lanes))]
    for what, thread, name, index in rows:
        own = {"ph": "M", "ts": 0, "pid": process, "tid": thread}
        yield {"name": f"{what}_name", **own, "args": {"name": name}}
        yield {"name": f"{what}_sort_index", **own, "args": {"sort_index": index}}


def spans(process: int, found: Iterable[Span], zero_s: float) -> Iterator[dict[str, Any]]:
    """An event for each; spans that touch do so in microseconds, too."""
    for span in found:
        begin, end = in_us(span.begin_s - zero_s), in_us(span.end_s - zero_s)
        time = {"ph": "X", "ts": begin, "dur": round(end - begin, DIGITS)}
        event = {"name": span.name, "cat": span.kind, **time, "pid": process, "tid": LANES.index(span.lane)}
        yield event if span.args is None else event | {"args": span.args}


def marks(process: int, iterations: Iterable[Iteration], zero_s: float) -> Iterator[dict[str, Any]]:
    """Where iterations begin, and how long they last."""
    for number, begin_s, end_s in iterations:
        time = {"ph": "i", "s": "p", "ts": in_us(begin_s - zero_s), "args": {"dur": in_us(end_s - begin_s)}}
        yield {"name": f"iteration {number}", "cat": "iteration", **time, "pid": process, "tid": 0}


def arrow(
    flow: Flow, identity: int, steps: Mapping[int, Sequence[Mapping[str, Any]]], zero_s: float
) -> Iterator[dict[str, Any]]:
    """A message: it is drawn between spans, so its ends are within the one that begins it and the one that ends it."""
    for phase, rank, at_s in (("s", flow.sender, flow.begin_s), ("f", flow.receiver, flow.end_s)):
        own = steps[rank]
        at = in_us(at_s - zero_s)
        place = bisect_right(own, at if phase == "s" else at - INSTANT_US / 2, key=lambda event: event["ts"]) - 1
        event = own[max(place, 0)]
        time = event["ts"] if phase == "s" else max(event["ts"], round(event["ts"] + event["dur"] - INSTANT_US, DIGITS))
        binding = {"bp": "e"} if phase == "f" else {}
        about = {"name": "message", "cat": "message", "ph": phase, "id": identity, "ts": time} | binding
        yield about | {"pid": event["pid"], "tid": LANES.index(STEPS)}


def in_us(seconds: float) -> float:
    return round(seconds * 1e6, DIGITS)
