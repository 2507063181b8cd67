"""Turn a timeline into a trace for Perfetto (https://ui.perfetto.dev).

A run's rank is a process, a lane a thread. Times are in microseconds from the run's begin. A message is an arrow from
the sender's starting span to the end of the receiver's wait.
Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from dear_mpi.contrib.look import LANES, STEPS, clock_of, lanes_in, steps_in
from dear_mpi.reporting.files import replacing
from dear_mpi.see.timeline import saved
from dear_mpi.training.events.spans import Flow, Span, Timeline

DIGITS = 3  # decimals of a microsecond


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the JSON object: names first, then events by time."""
    names, events = [], []
    most = max(len(run.ranks) for run in timeline.runs)
    identities = itertools.count(1)
    for number, run in enumerate(timeline.runs):
        inside, steps = steps_in(run), dict[int, list[dict[str, Any]]]()
        for process, rank in enumerate(run.ranks, number * most):
            title = rank.name if len(timeline.runs) == 1 else f"{run.name}: {rank.name}"
            names += metadata("process", title, process, pid=process, tid=0)
            for thread, lane in enumerate(lanes_in(run)):
                names += metadata("thread", lane, thread, pid=process, tid=thread)
            steps[rank.number] = spans(process, inside[rank.number], run.begin_s)
            events += [*spans(process, rank.spans, run.begin_s), *steps[rank.number]]
            for iteration, begin_s, end_s in rank.iterations:
                time = {"ts": in_us(begin_s - run.begin_s), "args": {"dur": in_us(end_s - begin_s)}}
                events.append({"name": f"iteration {iteration}", "cat": "iteration", "ph": "i", "s": "p", **time})
                events[-1] |= {"pid": process, "tid": 0}
        for flow in run.flows:
            events += arrow(flow, next(identities), steps, run.begin_s)
    shown = sorted({(len(run.ranks), run.size) for run in timeline.runs})
    few = "".join(f"; {count} of {size} ranks" for count, size in shown if 1 < count < size)
    about: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    about |= {"runs": [run.name for run in timeline.runs], "sizes": [run.size for run in timeline.runs]}
    about |= {"clocks": f"{clock_of(timeline)}; each run begins at 0{few}"}
    about |= {"clock_uncertainty_us": [in_us(run.uncertainty_s) for run in timeline.runs]}
    events.sort(key=itemgetter("ts"))
    content = {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about | timeline.facts}
    return content | saved(timeline)


def metadata(what: str, title: str, index: int, **own: int) -> list[dict[str, Any]]:
    """Return the name of a process (a rank) or a thread (its lane), and its place among the others."""
    args = {"name": {"name": title}, "sort_index": {"sort_index": index}}
    return [{"name": f"{what}_{key}", "ph": "M", "ts": 0, **own, "args": value} for key, value in args.items()]


def spans(process: int, found: Iterable[Span], zero_s: float) -> list[dict[str, Any]]:
    """Return an event per span; spans that touch also touch in microseconds."""
    events = []
    for span in found:
        begin, end = in_us(span.begin_s - zero_s), in_us(span.end_s - zero_s)
        event = {"name": span.name, "cat": span.kind, "ph": "X", "ts": begin, "dur": round(end - begin, DIGITS)}
        event |= {"pid": process, "tid": LANES.index(span.lane)}
        events.append(event if span.args is None else event | {"args": span.args})
    return events


def arrow(
    flow: Flow, identity: int, steps: Mapping[int, Sequence[Mapping[str, Any]]], zero_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the two ends of a message's arrow, inside its first and last span: viewers bind ends to spans."""
    instant = 10**-DIGITS  # in us
    for phase, rank, at_s in (("s", flow.sender, flow.begin_s), ("f", flow.receiver, flow.end_s)):
        own, ends = steps[rank], phase == "f"
        place = bisect_right(own, in_us(at_s - zero_s) - ends * instant / 2, key=itemgetter("ts")) - 1
        event = own[max(place, 0)]
        last = max(event["ts"], round(event["ts"] + event["dur"] - instant, DIGITS))
        about = {"name": "message", "cat": "message", "ph": phase, "id": identity, "ts": last if ends else event["ts"]}
        about |= {"pid": event["pid"], "tid": LANES.index(STEPS)}
        yield about | {"bp": "e"} if ends else about


def in_us(seconds: float) -> float:
    return round(seconds * 1e6, DIGITS)


def write_trace(flag: str, path: Path, timeline: Timeline) -> None:
    with replacing(flag, path) as file:
        file.write_text(json.dumps(trace(timeline)) + "\n")
