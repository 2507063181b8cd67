"""Made-up timelines."""

from dear_mpi.training.events.recorder import record
from dear_mpi.training.events.spans import COMPUTE, WIRE, Iteration, Rank, Run, Span, Timeline, merged

FACTS = {"model": "synthetic:resnet50", "fusion": "25MB", "emulated_link": None, "ranks": 2}


def rank_of(name="rank 0", start=10.0, iterations=3):
    """A second forward, two backward, and one of waiting; an all-reduce goes on while it waits."""
    spans, marks = [], []
    for number in range(iterations):
        at = start + 4 * number
        marks.append(Iteration(number, at, at + 4))
        spans += [
            Span(COMPUTE, "forward", "forward conv1", at, at + 1),
            Span(COMPUTE, "backward", "backward conv1", at + 1, at + 3),
            Span(WIRE, "all_reduce", "all_reduce of bucket 0 (layers 0..0, 2.0 MiB)", at + 2.5, at + 3.75),
            Span(COMPUTE, "wait", "wait for all_reduce of bucket 0 (layers 0..0, 2.0 MiB)", at + 3, at + 3.75),
            Span(COMPUTE, "update", "update of bucket 0", at + 3.75, at + 4),
        ]
    return Rank(name, tuple(marks), tuple(sorted(spans, key=lambda span: span.begin_s)))


def run_of(name="wfbp", ranks=2, **options):
    return Run(name, tuple(rank_of(f"rank {rank}", 10.0 + 0.1 * rank, **options) for rank in range(ranks)), ranks)


def timeline_of(*runs, live=True, **facts):
    return Timeline(live, runs or (run_of(),), FACTS | facts)


def recorded(session, name, **how):
    """The last iterations of all ranks as a run, by the clock of rank 0. Collective."""
    return merged(record(session, name, **how))
