"""Files of a timeline, by their endings: .json for Perfetto, or a picture.

The JSON is a Chrome trace, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open. Each rank of each run is
a process, and each lane of it a thread. Times are in microseconds; each run begins at 0.

Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import replacing
from dear_mpi.see.figure import write_figure
from dear_mpi.see.timeline.picture import draw_timeline
from dear_mpi.training.log.spans import LANES, Rank, Timeline

__all__ = ["write_timeline"]

TRACE = ".json"
DIGITS = 3  # of a microsecond: as many as a clock has


def write_timeline(
    flag: str, paths: Sequence[Path], timeline: Timeline, draw: Callable[[Timeline], Any] = draw_timeline
) -> None:
    """Write all files that can be written; a ValueError, which begins with ``flag``, names those that cannot.
    ``draw`` makes the figure of a picture."""
    complaints = []
    for path in paths:
        try:
            if path.suffix.lower() != TRACE:
                write_figure(flag, path, draw(timeline))
                continue
            with replacing(flag, path) as file:
                file.write_text(json.dumps(trace(timeline)) + "\n")
        except ValueError as error:
            complaints.append(str(error))
    if complaints:
        raise ValueError("; ".join(complaints))


def trace(timeline: Timeline) -> dict[str, Any]:
    """The JSON object: names first, then events in the order of their times."""
    names, events = [], []
    most = max(len(run.ranks) for run in timeline.runs)
    for number, run in enumerate(timeline.runs):
        for process, rank in enumerate(run.ranks, number * most):
            title = rank.name if len(timeline.runs) == 1 else f"{run.name}: {rank.name}"
            names += list(metadata(process, title))
            events += list(happenings(process, rank, run.begin_s))
    said: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    said |= {"runs": [run.name for run in timeline.runs], "clocks": clocks(timeline)}
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": said | timeline.facts}


def clocks(timeline: Timeline) -> str:
    """What there is to know of times on different ranks, and of different runs."""
    shown = {(len(run.ranks), run.size) for run in timeline.runs}
    few = "".join(f"; the first {count} of {size} ranks" for count, size in sorted(shown) if 1 < count < size)
    aligned = "aligned by barriers after the last iteration" if timeline.live else "of the virtual fabric"
    return f"{aligned}; each run begins at 0{few}"


def metadata(process: int, title: str) -> Iterator[dict[str, Any]]:
    """The names of a rank and of its lanes, and their order."""
    rows = [("process", 0, title, process), *(("thread", thread, lane, thread) for thread, lane in enumerate(LANES))]
    for what, thread, name, index in rows:
        own = {"ph": "M", "ts": 0, "pid": process, "tid": thread}
        yield {"name": f"{what}_name", **own, "args": {"name": name}}
        yield {"name": f"{what}_sort_index", **own, "args": {"sort_index": index}}


def happenings(process: int, rank: Rank, zero_s: float) -> Iterator[dict[str, Any]]:
    """An event for each span, and a mark where an iteration begins; spans that touch do so in microseconds, too."""
    for span in rank.spans:
        begin, end = in_us(span.begin_s - zero_s), in_us(span.end_s - zero_s)
        time = {"ph": "X", "ts": begin, "dur": round(end - begin, DIGITS)}
        yield {"name": span.name, "cat": span.kind, **time, "pid": process, "tid": LANES.index(span.lane)}
    for iteration in rank.iterations:
        time = {"ph": "i", "s": "p", "ts": in_us(iteration.begin_s - zero_s)}
        yield {"name": f"iteration {iteration.number}", "cat": "iteration", **time, "pid": process, "tid": 0}


def in_us(seconds: float) -> float:
    return round(seconds * 1e6, DIGITS)
