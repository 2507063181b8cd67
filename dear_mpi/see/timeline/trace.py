"""Convert a timeline to a Chrome trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Each rank of each run is a process, and each lane a thread. Times are in microseconds; each run begins at 0. A message
is an arrow from the sender's starting span to the end of the receiver's wait.

This file also merges single ranks' files (``TimelineFiles.write_rank``) into one timeline.

Source: Trace Event Format, Google, 2016, "JSON Object Format".
"""

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, convert

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.collectives.plans.steps import Flow
from dear_mpi.ranks.clock import aligned_of
from dear_mpi.reporting.units import plural
from dear_mpi.training.log.spans import LANES, STEPS, Iteration, Rank, Recording, Run, Span, Timeline, merged

DIGITS = 3  # decimals of a microsecond, as precise as a clock
INSTANT_US = 10**-DIGITS


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
            events += list(marks(process, rank.iterations, run.begin_s))
        for flow in found.flows:
            events += list(arrow(flow, next(identities), steps, run.begin_s))
    said: dict[str, Any] = {"program": "dear-mpi", "times": "live (measured)" if timeline.live else "predicted"}
    said |= {"runs": [run.name for run in timeline.runs], "sizes": [run.size for run in timeline.runs]}
    said |= {"clocks": clocks(timeline), "clock_uncertainty_us": [in_us(run.uncertainty_s) for run in timeline.runs]}
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": said | timeline.facts}


def clocks(timeline: Timeline) -> str:
    """Describe the comparability of times on different ranks, and of different runs."""
    shown = {(len(run.ranks), run.size) for run in timeline.runs}
    few = "".join(f"; {count} of {size} ranks" for count, size in sorted(shown) if 1 < count < size)
    return f"{clock_of(timeline)}; each run begins at 0{few}"


def clock_of(timeline: Timeline) -> str:
    if not timeline.live:
        return "of the virtual fabric"
    worst_us = max(run.uncertainty_s for run in timeline.runs) * 1e6
    return f"that of rank 0, within {worst_us:.1f} us" if worst_us else "one for all ranks"


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


def marks(process: int, iterations: Iterable[Iteration], zero_s: float) -> Iterator[dict[str, Any]]:
    """Return the starts and durations of iterations."""
    for number, begin_s, end_s in iterations:
        time = {"ph": "i", "s": "p", "ts": in_us(begin_s - zero_s), "args": {"dur": in_us(end_s - begin_s)}}
        yield {"name": f"iteration {number}", "cat": "iteration", **time, "pid": process, "tid": 0}


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


MOST_US = 1e15  # 30 years
MOST_RANKS = 10**6
OF_PARTS = ("number", "step", "peer", "message", "direction", "chunk", "bytes", "call", "under_way")
OF_FILES = ("runs", "sizes", "clocks", "clock_uncertainty_us", "of_rank", "own_clocks", "zeros_s", "program", "times")


Microseconds = Annotated[float, Meta(ge=-MOST_US, le=MOST_US)]


@dataclass(frozen=True)
class TraceEvent:
    """Field types of an event, which any program may have written."""

    name: str
    ph: str
    pid: int
    cat: str = ""
    ts: Microseconds = 0.0
    dur: Microseconds = 0.0
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """Field types of the facts about the whole trace."""

    runs: list[str]
    sizes: list[Annotated[int, Meta(ge=1, le=MOST_RANKS)]]
    times: str = ""
    job: str = ""
    of_rank: int = 0


@dataclass(frozen=True)
class Trace:
    otherData: Told
    traceEvents: list[TraceEvent]


class Process(NamedTuple):
    """A rank of a run in a trace."""

    name: str
    events: list[Mapping[str, Any]]


class RankFile(NamedTuple):
    path: str
    job: str  # equal in all files of one job
    recordings: list[Recording]  # of the job's runs
    facts: dict[str, Any]

    @property
    def rank(self) -> int:
        return self.recordings[0].rank.number


def put_together(paths: Sequence[str]) -> Timeline:
    """Merge the files of ranks into one timeline.

    Raises:
        ClocksError: the clocks of the ranks cannot be compared.
        ValueError: a file is of another kind or another job; or two files are of one rank.
    """
    files = sorted(map(read, paths), key=lambda each: each.rank)
    first = files[0]
    for each in files[1:]:
        if each.job != first.job or [one.name for one in each.recordings] != [one.name for one in first.recordings]:
            raise ValueError(f"{each.path!r} and {first.path!r} are not of one run")
    for rank, same in groupby(files, lambda each: each.rank):
        if len(named := [each.path for each in same]) > 1:
            raise ValueError(f"rank {rank} must have one file, not {' and '.join(map(repr, named))}")
    runs = tuple(merged([each.recordings[place] for each in files]) for place in range(len(first.recordings)))
    facts = {name: fact for name, fact in first.facts.items() if all(each.facts.get(name) == fact for each in files)}
    return Timeline(live=True, runs=runs, facts=facts)


def missing(timeline: Timeline) -> str:
    """Describe missing rank files; nothing if all were there."""
    run = timeline.runs[0]
    there = {rank.number for rank in run.ranks}
    lacking = [str(rank) for rank in range(run.size) if rank not in there]
    return f"{plural(len(lacking), 'rank')} of {run.size} not given: {', '.join(lacking)}" if lacking else ""


@contextmanager
def opened(path: str, what: str) -> Iterator[tuple[dict[str, Any], dict[int, Process]]]:
    """Open a trace: yield its facts and processes to a block that reads them.

    Errors name the expected kind of trace as ``what``.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        convert(content, Trace)
        yield content["otherData"], processes_of(content["traceEvents"])
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise ValueError(f"{path!r} is no timeline of {what}") from None


def processes_of(events: Sequence[Mapping[str, Any]]) -> dict[int, Process]:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = {process: Process(names[process], []) for process in sorted(names)}
    for event in events:
        found[event["pid"]].events.append(event)
    return found


def read(path: str) -> RankFile:
    with opened(path, "one rank, as FILE.rank0.json is") as (said, processes):
        recordings = list(recordings_in(processes, said))
        return RankFile(path, said["job"], recordings, facts_in(said))


def facts_in(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trace's facts about its job, without facts about the file."""
    return {name: fact for name, fact in said.items() if name not in OF_FILES}


def recordings_in(processes: Mapping[int, Process], said: Mapping[str, Any]) -> Iterator[Recording]:
    """Return a file's runs: each is a process."""
    about = zip(said["runs"], said["sizes"], said["own_clocks"], said["zeros_s"], strict=True)
    for number, (name, size, clock, zero_s) in enumerate(about):
        yield Recording(name, size, rank_in(processes[number], name, said["of_rank"], zero_s), aligned_of(clock))


def read_timeline(path: str) -> Timeline:
    """Read the timeline in a file of all ranks. Raises a ValueError for other files."""
    with opened(path, "all ranks, as --timeline FILE.json writes") as (said, processes):
        if "of_rank" not in said:
            most, runs = -(-len(processes) // len(said["runs"])), []
            for number, (name, size) in enumerate(zip(said["runs"], said["sizes"], strict=True)):
                its = [process for process in processes if process // most == number]
                ranks = (rank_in(processes[process], name, process % most) for process in its)
                runs.append(Run(name, tuple(ranks), size))
            return Timeline(said["times"].startswith("live"), tuple(runs), facts_in(said))
    raise ValueError(f"{path!r} is of one rank: put it together with the others (dear-mpi timeline) first")


def rank_in(process: Process, run: str, number: int, zero_s: float = 0.0) -> Rank:
    """Read a rank of a run from its process."""
    events = process.events
    spans = [span_of(event, zero_s) for event in events if event["ph"] == "X"]
    outer = tuple(span for span in spans if span.lane != STEPS)
    inner = groupby((span for span in spans if span.lane == STEPS), lambda span: (span.args or {})["number"])
    noted = tuple(noted_of(number, list(joined(calls))) for number, calls in inner)
    marks = tuple(iteration_of(event, zero_s) for event in events if event["ph"] == "i")
    return Rank(process.name.removeprefix(f"{run}: "), marks, outer, number, noted)


def joined(calls: Iterable[Span]) -> Iterator[Span]:
    """Join calls whose wait was split into waiting and transfer."""
    waits: Span | None = None
    for call in calls:
        if waits is not None:
            call, waits = call._replace(begin_s=waits.begin_s), None
        if call.kind == "waiting" and (call.args or {})["call"] == "ending" and not (call.args or {}).get("under_way"):
            waits = call
        else:
            yield call


def span_of(event: Mapping[str, Any], zero_s: float) -> Span:
    begin_s, end_s = (zero_s + us * 1e-6 for us in (event["ts"], event["ts"] + event["dur"]))
    return Span(LANES[event["tid"]], event["cat"], event["name"], begin_s, end_s, event.get("args"))


def iteration_of(event: Mapping[str, Any], zero_s: float) -> Iteration:
    begin_s = zero_s + event["ts"] * 1e-6
    return Iteration(int(event["name"].removeprefix("iteration ")), begin_s, begin_s + event["args"]["dur"] * 1e-6)


def noted_of(number: int, calls: Sequence[Span]) -> Noted:
    args: list[dict[str, Any]] = [dict(call.args or {}) for call in calls]
    parts = [
        Part(
            each["call"],
            each["step"],
            each.get("message", 0),
            each["peer"],
            each.get("direction") == "receive",
            each["chunk"],
            each["bytes"],
        )
        for each in args
    ]
    said = {name: value for name, value in args[0].items() if name not in OF_PARTS}
    times = [calls[0].begin_s, *(call.end_s for call in calls)]
    return Noted(number, said, parts, times, under_way=bool(args[-1].get("under_way")))
