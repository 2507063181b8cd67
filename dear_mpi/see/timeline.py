"""Write timelines to files: a trace for Perfetto (https://ui.perfetto.dev), or what an extra draws; and read traces.

In a trace each rank of each run is a process, and each lane a thread. Times are in microseconds; each run begins at 0.
A message is an arrow from the sender's starting span to the end of the receiver's wait. The key ``recorded`` has the
timeline itself, which programs read.

Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

import itertools
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import convert, to_builtins

from dear_mpi.collectives.plans.notes import Flow, Ranks
from dear_mpi.collectives.program.extras import entry_points_of, load_extra
from dear_mpi.reporting.files import check_ending, replacing
from dear_mpi.see.look import clock_of
from dear_mpi.training.spans import LANES, STEPS, Rank, Run, Span, Timeline

DIGITS = 3  # decimals of a microsecond, as precise as a clock
INSTANT_US = 10**-DIGITS
TRACE = ".json"
Write = Callable[[str, Path, Timeline], object]


def trace(timeline: Timeline) -> dict[str, Any]:
    """Return the JSON object: names first, then events in the order of their times."""
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
            for iteration, begin_s, end_s in rank.iterations:
                time = {
                    "ph": "i",
                    "s": "p",
                    "ts": in_us(begin_s - run.begin_s),
                    "args": {"dur": in_us(end_s - begin_s)},
                }
                events.append({"name": f"iteration {iteration}", "cat": "iteration", **time, "pid": process, "tid": 0})
        for flow in found.flows:
            events += arrow(flow, next(identities), steps, run.begin_s)
    shown = sorted({(len(run.ranks), run.size) for run in timeline.runs})
    few = "".join(f"; {count} of {size} ranks" for count, size in shown if 1 < count < size)
    about: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    about |= {"runs": [run.name for run in timeline.runs], "sizes": [run.size for run in timeline.runs]}
    about |= {"clocks": f"{clock_of(timeline)}; each run begins at 0{few}"}
    about |= {"clock_uncertainty_us": [in_us(run.uncertainty_s) for run in timeline.runs]}
    events.sort(key=lambda event: event["ts"])
    saved = to_builtins(timeline, enc_hook=list)
    content = {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about | timeline.facts}
    return content | {"recorded": saved}


def metadata(process: int, title: str, lanes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Return the names of a rank and its lanes, and their order."""
    rows = [("process", 0, title, process), *(("thread", thread, lane, thread) for thread, lane in enumerate(lanes))]
    for what, thread, name, index in rows:
        own = {"ph": "M", "ts": 0, "pid": process, "tid": thread}
        yield {"name": f"{what}_name", **own, "args": {"name": name}}
        yield {"name": f"{what}_sort_index", **own, "args": {"sort_index": index}}


def spans(process: int, found: Iterable[Span], zero_s: float) -> Iterator[dict[str, Any]]:
    """Return an event per span; spans that touch also touch in microseconds."""
    for span in found:
        begin, end = in_us(span.begin_s - zero_s), in_us(span.end_s - zero_s)
        time = {"ph": "X", "ts": begin, "dur": round(end - begin, DIGITS)}
        event = {"name": span.name, "cat": span.kind, **time, "pid": process, "tid": LANES.index(span.lane)}
        yield event if span.args is None else event | {"args": span.args}


def arrow(
    flow: Flow, identity: int, steps: Mapping[int, Sequence[Mapping[str, Any]]], zero_s: float
) -> Iterator[dict[str, Any]]:
    """Return a message's arrow, with ends inside its first and last span, because viewers draw between spans."""
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


@dataclass
class TimelineFiles:
    """The files of a flag, by their endings: .json is a trace, and extras write others.

    Call it on rank 0. It writes all files that it can, and keeps the timeline.

    Raises:
        ValueError: an ending is unknown, its extra lacks something, or a file cannot be written.
    """

    flag: str
    paths: Sequence[Path]
    timeline: Timeline | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        extras = {f".{name}": name for name in sorted(entry_points_of("timelines"))}
        self.writers: list[Write] = []
        for path in self.paths:
            check_ending(self.flag, path, (TRACE, *extras))
            ending = path.suffix.lower()
            self.writers.append(write_trace if ending == TRACE else load_extra("timelines", extras[ending]))

    def __call__(self, timeline: Timeline) -> None:
        self.timeline, complaints = timeline, []
        for path, write in zip(self.paths, self.writers, strict=True):
            try:
                write(self.flag, path, timeline)
            except ValueError as error:
                complaints.append(str(error))
        if complaints:
            raise ValueError("; ".join(complaints))


def write_trace(flag: str, path: Path, timeline: Timeline) -> None:
    write_json(flag, path, trace(timeline))


def write_json(flag: str, path: Path, content: Mapping[str, Any]) -> None:
    with replacing(flag, path) as file:
        file.write_text(json.dumps(content) + "\n")


def timeline_of(title: str, runs: Mapping[str, Ranks], uncertainty_s: float) -> Timeline:
    """Return a timeline of named collectives, with each rank's events on one clock."""
    found = []
    for name, each in runs.items():
        ranks = (Rank(f"rank {number}", (), (), number, (noted,)) for number, noted in each.items())
        found.append(Run(name, tuple(ranks), len(each), uncertainty_s))
    return Timeline(live=True, runs=tuple(found), facts={"title": title})


def read_timeline(path: str) -> Timeline:
    """Read a timeline that ``--timeline FILE.json`` wrote. Raises a ValueError for other files."""
    try:
        return convert(json.loads(Path(path).read_text(encoding="utf-8"))["recorded"], Timeline)
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(f"{path!r} is no timeline of all ranks, as --timeline FILE.json writes") from None
