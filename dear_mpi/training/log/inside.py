"""What each rank spent in each step of its collectives, from a run's notes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from dear_mpi.collectives.plans.steps import fold
from dear_mpi.reporting.groups import grouped
from dear_mpi.training.log.spans import Run, Span


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
    for rank in run.ranks:
        ends = {each.number: each.end_s for each in rank.noted}
        for (number, _), spans in grouped(run.inside.spans[rank.number], step_of).items():
            inside_of = [each.number for each in rank.iterations if each.begin_s <= ends[number] <= each.end_s]
            yield step_time(rank.number, next(iter(inside_of), -1), spans)


def step_of(span: Span) -> tuple[int, int | None]:
    """The number of its collective, and of its step."""
    assert span.args is not None, "each step has them"
    return span.args["number"], span.args["step"]


def step_time(rank: int, iteration: int, spans: list[Span]) -> StepTime:
    told: list[Any] = [span.args for span in spans]
    args = told[0]
    seconds, waits_for = fold((span.kind, said["peer"], span.seconds) for span, said in zip(spans, told, strict=True))
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
        nbytes=sum(each["bytes"] for each in told if each["call"] == "starting" and each["direction"] == "receive"),
        waits_for=waits_for,
    )
