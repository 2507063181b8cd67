"""Timelines, for the extras that show them: read from files, how they look, and the lane ``steps``.

Notes of all ranks split the time of a collective, in the lane ``steps``:

    rank 1   started its end of the message:            |
    rank 2   blocked in its wait:           |- waiting -|- transfer -|- combining -|

A wait is *waiting* until the peer starts its end of the message, then *transfer*, as are calls that start messages.
Without the peer's notes it is *either*. *Combining* and *copying* work on a message's data. A library call is *whole*.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from msgspec import convert

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.reporting.units import plural
from dear_mpi.training.events.spans import (
    COMPUTE,
    WIRE,
    End,
    Rank,
    Ranks,
    Run,
    Span,
    Timeline,
    other_end,
    starts_of,
)

COLORS = {  # in the legend's order; all readers can tell them apart
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "weights": "#332288",
    "wait": "#D55E0047",
    "update": "#009E73",
    "reduce_scatter": "#E69F00",
    "all_gather": "#F0E442",
    "all_reduce": "#CC79A7",
    "exchange": "#B08D6E",
    "other": "#999999",
}
SAID = {  # kinds with other names
    "wait": "compute waits: exposed",
    "weights": "weights, delayed",
    "other": "loss and other small ones",
    "waiting": "waiting for the peer",
    "either": "waiting or transfer",
    "whole": "in the MPI library",
}
DARK = ("backward", "weights", "update", "transfer", "whole", "combining")  # with white letters
MOST_RUNS, MOST_RANKS = 6, 8  # shown; ranks: over all runs
SHOWN = 2  # iterations
LONG = 80  # characters of a fact
STEPS = "steps"  # the lane inside of the engine's collectives
LANES = (COMPUTE, WIRE, STEPS)
AS = {"starting": "transfer", "device": "waiting"}  # kinds of calls in it
TOLD = ("fusion", "algorithm", "device", "transport")


def read_timeline(path: str) -> Timeline:
    """Read ``--timeline FILE.json``. Raises a ValueError for other files."""
    try:
        return convert(json.loads(Path(path).read_text(encoding="utf-8"))["recorded"], Timeline)
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(f"{path!r} is no timeline of all ranks, as --timeline FILE.json writes") from None


def label(name: object) -> str:
    """
    >>> label("synthetic:resnet50"), label("cut:4MB"), label("folder/mine.py:Mine")
    ('resnet50', 'cut:4MB', 'mine.py:Mine')
    """
    return PurePath(str(name).removeprefix("synthetic:")).name


def short(span: Span) -> str:
    """Return a span's label: a layer's name, or a bucket's number."""
    if span.kind in ("forward", "backward", "weights"):
        return span.name.removeprefix(f"{span.kind} ").removeprefix("of ")
    return span.name.partition("bucket ")[2].partition(" ")[0]


def clock_of(timeline: Timeline) -> str:
    if not timeline.live:
        return "of the virtual fabric"
    worst_us = max(run.uncertainty_s for run in timeline.runs) * 1e6
    return f"that of rank 0, within {worst_us:.1f} us" if worst_us else "one for all ranks"


def title_of(timeline: Timeline) -> str:
    """Describe the runs, and whether times are live or predicted."""
    runs, sizes = timeline.runs, {run.size for run in timeline.runs}
    words = [", ".join(map(label, different(timeline.facts.get("model", []))))]
    words += ["under", label(runs[0].name)] * (len(runs) == 1)
    words += ["on", plural(max(sizes), "rank")] * (len(sizes) == 1)
    return f"{'Live' if timeline.live else 'Predicted'}: {' '.join(filter(None, words))}"


def different(fact: Any) -> list[Any]:
    return list(dict.fromkeys(fact)) if isinstance(fact, list | tuple) else [fact]


def origins(timeline: Timeline, few: int) -> Iterator[str]:
    """Describe the source of times, and what is left out from rank ``few`` on."""
    facts = timeline.facts
    values = {name: [str(each) for each in different(facts[name])] for name in TOLD if facts.get(name)}
    told = [  # a fusion by borders is long
        f"{name} {', '.join(each if len(each) <= LONG else f'{each[: LONG - 3]}...' for each in found)}"
        for name, found in values.items()
    ]
    if "origin" in facts:
        yield facts["origin"]
        told = told[:1]
    left = [f"{len(timeline.runs) - MOST_RUNS} more runs"] * (len(timeline.runs) > MOST_RUNS)
    left += [f"ranks from {few} on"] * any(len(run.ranks) > few for run in timeline.runs)
    told += [f"not shown: {' and '.join(left)}"] * bool(left)
    yield "; ".join([*told, "numbers on the wire are those of buckets"])


def window_of(run: Run) -> tuple[float, float]:
    """Return the window of the last iterations, in seconds, from the first rank's start to the last rank's end.

    It is everything if a rank has completed no iteration.
    """
    shown = [rank.iterations[-SHOWN:] for rank in run.ranks]
    if not all(shown):
        return run.begin_s, run.end_s
    return min(each[0].begin_s for each in shown), max(each[-1].end_s for each in shown)


def last_iteration(run: Run) -> tuple[float, float]:
    """Return the last iteration's seconds and exposed seconds, on its slowest rank."""
    longest = max(run.ranks, key=lambda rank: rank.iterations[-1].end_s - rank.iterations[-1].begin_s)
    last = longest.iterations[-1]
    return last.end_s - last.begin_s, sum(span.seconds for span in longest.within(last, "wait"))


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


def lanes_in(run: Run) -> tuple[str, ...]:
    return LANES if any(rank.noted for rank in run.ranks) else LANES[:-1]


def steps_in(run: Run) -> dict[int, list[Span]]:
    """Return the lane ``steps`` of each rank."""
    found: dict[int, list[Span]] = {rank.number: [] for rank in run.ranks}
    for their in run.collectives:
        starts = starts_of(their)
        for number, noted in their.items():
            found[number] += [
                Span(STEPS, each.kind, name_of(each), each.begin_s, each.end_s, said_of(each, noted))
                for each in spans_of(number, noted, starts)
            ]
    return found


def name_of(step: StepSpan) -> str:
    """Name a step, such as "step 2: waiting, rank 1"."""
    if step.step is None:
        return {"device": "waiting for the device", "whole": "in the MPI library"}.get(step.part.kind, step.kind)
    kind = "waiting or transfer" if step.kind == "either" else step.kind
    return f"step {step.step}: {kind}" + (f", rank {step.peer}" if step.peer is not None else "")


def said_of(span: StepSpan, noted: Noted) -> dict[str, Any]:
    part = span.part
    known: dict[str, Any] = {**noted.said, "number": noted.number, "step": part.step, "peer": part.peer}
    if part.kind in ("starting", "ending"):
        known |= {"message": part.number, "direction": "receive" if part.incoming else "send"}
    return known | {"chunk": part.chunk, "bytes": part.nbytes, "call": part.kind}


def timeline_of(title: str, runs: Mapping[str, Ranks], uncertainty_s: float) -> Timeline:
    """Return a timeline of named collectives, with each rank's events on one clock."""
    found = []
    for name, each in runs.items():
        ranks = (Rank(f"rank {number}", (), (), number, (noted,)) for number, noted in each.items())
        found.append(Run(name, tuple(ranks), len(each), uncertainty_s))
    return Timeline(live=True, runs=tuple(found), facts={"title": title})
