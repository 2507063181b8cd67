"""Files of single ranks (``TimelineFiles.apart``), read again and put together to one timeline; or one of all."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.ranks.aligned import aligned_of
from dear_mpi.reporting.units import plural
from dear_mpi.training.log.merged import Recording, merged
from dear_mpi.training.log.spans import LANES, STEPS, Iteration, Rank, Run, Span, Timeline

OF_PARTS = ("number", "step", "peer", "message", "direction", "chunk", "bytes", "call", "under_way")
OF_FILES = ("runs", "sizes", "clocks", "clock_uncertainty_us", "of_rank", "own_clocks", "zeros_s", "program", "times")


class RankFile(NamedTuple):
    path: str
    job: str  # alike in all files of one job
    recordings: list[Recording]  # of its runs
    facts: dict[str, Any]

    @property
    def rank(self) -> int:
        return self.recordings[0].rank.number


def put_together(paths: Sequence[str]) -> Timeline:
    """The timeline of the files of ranks.

    Raises:
        ClocksError: the clocks of the ranks cannot be compared.
        ValueError: a file is no such file, or of another job; or two are of one rank.
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
    """Whose files were not there, for a reader; nothing if all were."""
    run = timeline.runs[0]
    there = {rank.number for rank in run.ranks}
    lacking = [str(rank) for rank in range(run.size) if rank not in there]
    return f"{plural(len(lacking), 'rank')} of {run.size} not given: {', '.join(lacking)}" if lacking else ""


def read(path: str) -> RankFile:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        said = content["otherData"]
        recordings = list(recordings_in(content["traceEvents"], said))
        facts = {name: fact for name, fact in said.items() if name not in OF_FILES}
        return RankFile(path, said["job"], recordings, facts)
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise ValueError(f"{path!r} is no timeline of one rank, as FILE.rank0.json is") from None


def recordings_in(events: Sequence[Mapping[str, Any]], said: Mapping[str, Any]) -> Iterator[Recording]:
    """The runs of a file: each is a process."""
    about = zip(said["runs"], said["sizes"], said["own_clocks"], said["zeros_s"], strict=True)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    for process, (name, size, clock, zero_s) in enumerate(about):
        own = [event for event in events if event["pid"] == process]
        rank = rank_in(own, names[process].removeprefix(f"{name}: "), said["of_rank"], zero_s)
        yield Recording(name, size, rank, aligned_of(clock))


def rank_in(events: Sequence[Mapping[str, Any]], name: str, number: int, zero_s: float) -> Rank:
    """A rank, from the events of its process."""
    spans = [span_of(event, zero_s) for event in events if event["ph"] == "X"]
    outer = tuple(span for span in spans if span.lane != STEPS)
    inner = groupby((span for span in spans if span.lane == STEPS), lambda span: (span.args or {})["number"])
    noted = tuple(noted_of(number, list(joined(calls))) for number, calls in inner)
    marks = tuple(iteration_of(event, zero_s) for event in events if event["ph"] == "i")
    return Rank(name, marks, outer, number, noted)


def read_timeline(path: str) -> Timeline:
    """The timeline of a file of all ranks; a ValueError if it is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        events, said = content["traceEvents"], content["otherData"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        if "of_rank" in said:
            raise ValueError(f"{path!r} is of one rank: put it together with the others (dear-mpi timeline) first")
        own: dict[int, list[Mapping[str, Any]]] = {process: [] for process in sorted(names)}
        for event in events:
            own[event["pid"]].append(event)
        most, runs = -(-len(own) // len(said["runs"])), []
        for number, (name, size) in enumerate(zip(said["runs"], said["sizes"], strict=True)):
            its = [process for process in own if process // most == number]
            ranks = (
                rank_in(own[process], names[process].removeprefix(f"{name}: "), process % most, 0.0) for process in its
            )
            runs.append(Run(name, tuple(ranks), size))
        return Timeline(live=said["times"].startswith("live"), runs=tuple(runs))
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, IndexError, json.JSONDecodeError):
        raise ValueError(f"{path!r} is no timeline of all ranks, as --timeline FILE.json writes") from None


def joined(calls: Iterable[Span]) -> Iterator[Span]:
    """The calls, of which a wait was shown as waiting, and then as transfer."""
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
