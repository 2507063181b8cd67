"""The lane ``steps`` of a timeline: what all ranks did inside of their collectives, and the messages between them.

Notes of a rank know when its own calls began and ended; only beside the notes of its peers they say how long it waited
for them. So the lane is made when a timeline is shown, from the notes of all ranks.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dear_mpi.collectives.plans.notes import Noted
from dear_mpi.collectives.plans.steps import Flow, flows_of, said_of, spans_of, starts_of
from dear_mpi.collectives.plans.steps import Span as Step
from dear_mpi.training.log.spans import STEPS, Run, Span


@dataclass(frozen=True)
class Inside:
    """Spans by the number of the rank, in the order of their times; the messages of which both ends are known."""

    spans: dict[int, list[Span]] = field(default_factory=lambda: defaultdict(list))
    flows: list[Flow] = field(default_factory=list)


def inside(run: Run) -> Inside:
    """What the notes of a run say, of the collectives that all of its ranks have noted."""
    first = max((min(each.number for each in rank.noted) for rank in run.ranks if rank.noted), default=0)
    collectives = defaultdict[int, dict[int, Noted]](dict)
    for rank in run.ranks:
        for noted in rank.noted:
            if noted.number >= first:
                collectives[noted.number][rank.number] = noted
    found, known = Inside(), {rank.number for rank in run.ranks}
    for _, ranks in sorted(collectives.items()):
        starts = starts_of(ranks)
        for number, noted in ranks.items():
            found.spans[number] += [shown(each, noted) for each in spans_of(number, noted, starts, known)]
            if noted.under_way:
                last = found.spans[number][-1]
                found.spans[number][-1] = last._replace(args={**(last.args or {}), "under_way": True})
        found.flows.extend(flows_of(ranks, starts))
    return found


def shown(step: Step, noted: Noted) -> Span:
    return Span(STEPS, step.kind, name_of(step), step.begin_s, step.end_s, said_of(step, noted))


def name_of(step: Step) -> str:
    """Such as: step 2: waiting, rank 1."""
    if step.step is None:
        return {"device": "waiting for the device", "whole": "in the MPI library"}.get(step.part.kind, step.kind)
    kind = "waiting or transfer" if step.kind == "either" else step.kind
    return f"step {step.step}: {kind}" + (f", rank {step.peer}" if step.peer is not None else "")


class StepTime(NamedTuple):
    """Seconds of a rank in a step of a collective; ``nbytes`` are what it received in it from all of its peers."""

    rank: int
    iteration: int  # in which the collective ended on this rank; -1 if in none that is shown
    number: int  # of the collective
    collective: str
    bucket: int | None  # None for what is of no bucket
    step: int | None
    waiting_s: float
    transfer_s: float  # with what is either
    combining_s: float
    copying_s: float
    nbytes: int
    waits_for: int | None  # the peer that most of the waiting was for


def step_times(run: Run) -> Iterator[StepTime]:
    """Of each rank, by collective and step."""
    found = inside(run)
    for rank in run.ranks:
        grouped = defaultdict[tuple[int, Any], list[Span]](list)
        for span in found.spans[rank.number]:
            assert span.args is not None, "each step has them"
            grouped[span.args["number"], span.args["step"]].append(span)
        ends = {each.number: each.end_s for each in rank.noted}
        for (number, _), spans in grouped.items():
            inside_of = [each.number for each in rank.iterations if each.begin_s <= ends[number] <= each.end_s]
            yield step_time(rank.number, next(iter(inside_of), -1), spans)


def step_time(rank: int, iteration: int, spans: list[Span]) -> StepTime:
    seconds, awaited, nbytes = defaultdict[str, float](float), defaultdict[int, float](float), 0
    args: Any = spans[0].args
    for span in spans:
        said: Any = span.args
        seconds[span.kind] += span.seconds
        if span.kind == "waiting" and said["peer"] is not None:
            awaited[said["peer"]] += span.seconds
        if said["call"] == "starting" and said["direction"] == "receive":
            nbytes += said["bytes"]
    return StepTime(
        rank,
        iteration,
        args["number"],
        args["collective"],
        args.get("bucket"),
        args["step"],
        waiting_s=seconds["waiting"],
        transfer_s=seconds["transfer"] + seconds["either"] + seconds["whole"],
        combining_s=seconds["combining"],
        copying_s=seconds["copying"],
        nbytes=nbytes,
        waits_for=max(awaited, key=awaited.__getitem__, default=None),
    )
