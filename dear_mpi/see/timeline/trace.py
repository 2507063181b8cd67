"""A timeline as Chrome trace JSON, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Each rank of each run is a process, and each lane of it a thread. Times are in microseconds; each run begins at 0.

Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import replacing
from dear_mpi.training.log.spans import LANES, Rank, Timeline

DIGITS = 3  # of a microsecond


def write_trace(flag: str, path: Path, timeline: Timeline) -> None:
    """Write it into a file.

    Raises:
        ValueError: the file cannot be written.
    """
    with replacing(flag, path) as file:
        file.write_text(json.dumps(trace(timeline)) + "\n")


def trace(timeline: Timeline) -> dict[str, Any]:
    """The JSON object: names first, then events in the order of their times."""
    names, events = [], []
    for number, run in enumerate(timeline.runs):
        for place, rank in enumerate(run.ranks):
            process = number * max(len(each.ranks) for each in timeline.runs) + place
            title = rank.name if len(timeline.runs) == 1 else f"{run.name}: {rank.name}"
            names += list(metadata(process, title))
            events += [*spans(process, rank, run.begin_s), *beginnings(process, rank, run.begin_s)]
    said: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    said |= {"runs": [run.name for run in timeline.runs], "clocks": clocks(timeline)}
    ordered = sorted(events, key=lambda event: event["ts"])
    return {"traceEvents": names + ordered, "displayTimeUnit": "ms", "otherData": said | timeline.facts}


def clocks(timeline: Timeline) -> str:
    """What there is to know of times on different ranks, and of different runs."""
    shown = {(len(run.ranks), run.size) for run in timeline.runs}
    few = "".join(f"; the first {count} of {size} ranks" for count, size in sorted(shown) if 1 < count < size)
    aligned = "aligned by barriers after the last iteration" if timeline.live else "of the virtual fabric"
    return f"{aligned}; each run begins at 0{few}"


def metadata(process: int, title: str) -> Iterator[dict[str, Any]]:
    """The names of a rank and of its lanes, and their places."""

    def told(what: str, thread: int, **values: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": values}

    yield told("process_name", 0, name=title)
    yield told("process_sort_index", 0, sort_index=process)
    for thread, lane in enumerate(LANES):
        yield told("thread_name", thread, name=lane)
        yield told("thread_sort_index", thread, sort_index=thread)


def spans(process: int, rank: Rank, zero_s: float) -> Iterator[dict[str, Any]]:
    """An event for each span; if a span ends where another one begins, so do their events."""
    for span in rank.spans:
        begin, end = in_us(span.begin_s - zero_s), in_us(span.end_s - zero_s)
        yield {
            "name": span.name,
            "cat": span.kind,
            "ph": "X",
            "ts": begin,
            "dur": round(end - begin, DIGITS),
            "pid": process,
            "tid": LANES.index(span.lane),
        }


def beginnings(process: int, rank: Rank, zero_s: float) -> Iterator[dict[str, Any]]:
    """A mark where an iteration begins."""
    for iteration in rank.iterations:
        time = {"ts": in_us(iteration.begin_s - zero_s), "pid": process, "tid": 0}
        yield {"name": f"iteration {iteration.number}", "cat": "iteration", "ph": "i", "s": "p"} | time


def in_us(seconds: float) -> float:
    """Microseconds, as many digits as a clock has."""
    return round(seconds * 1e6, DIGITS)
