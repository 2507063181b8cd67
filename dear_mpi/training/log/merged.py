"""The recordings of all ranks, each by its own clock, as one run by the clock of rank 0; or why that cannot be.

A trace that was merged by wrong clocks looks like a right one. So it is not merged where the clocks cannot be known, or
where the messages themselves say that they are not: none can end before it was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dear_mpi.ranks.aligned import Aligned
from dear_mpi.training.log.spans import Rank, Run


class ClocksError(ValueError):
    """The clocks of ranks cannot be compared."""


@dataclass(frozen=True)
class Recording:
    """What one rank did, by its own clock, in a run of this name on so many ranks."""

    name: str
    size: int
    rank: Rank
    aligned: Aligned


def merged(recordings: Sequence[Recording]) -> Run:
    """One run, with all of its ranks that are given.

    Raises:
        ClocksError: the clock of a rank is not known, or not better than messages take.
    """
    for each in recordings:
        if doubt := each.aligned.doubt():
            raise ClocksError(f"the clock of rank {each.rank.number} cannot be compared with that of rank 0: {doubt}")
    ranks = tuple(moved(each.rank, each.aligned) for each in recordings)
    run = Run(recordings[0].name, ranks, recordings[0].size, uncertainty_of(recordings))
    check(run)
    return run


def moved(rank: Rank, aligned: Aligned) -> Rank:
    """A rank by the clock of rank 0."""

    def at(seconds: float) -> float:
        return seconds - aligned.offset_s(seconds)

    if not aligned.looks:
        return rank
    return replace(
        rank,
        iterations=tuple(each._replace(begin_s=at(each.begin_s), end_s=at(each.end_s)) for each in rank.iterations),
        spans=tuple(each._replace(begin_s=at(each.begin_s), end_s=at(each.end_s)) for each in rank.spans),
        noted=tuple(noted.earlier(aligned.offset_s(noted.begin_s)) for noted in rank.noted),
    )


def uncertainty_of(recordings: Sequence[Recording]) -> float:
    """By how many seconds times on two ranks may be wrong beside each other, where the least is known."""
    found_s = [0.0, 0.0]
    for each in recordings:
        run = Run(each.name, (each.rank,), each.size)
        found_s.append(max(map(each.aligned.uncertainty_s, (run.begin_s, run.end_s))))
    return sum(sorted(found_s)[-2:])


def check(run: Run) -> None:
    """See that messages go with the clocks."""
    flows, known_s = run.inside.flows, run.uncertainty_s
    if not flows:
        return
    first = min(flows, key=lambda flow: flow.seconds)
    if first.seconds < -known_s:
        ends = f"rank {first.receiver} has a message {-first.seconds:.3g} s before rank {first.sender} sent it"
        raise ClocksError(f"the clocks are wrong by more than the {known_s:.3g} s that are known of them: {ends}")
    usual_s = median(flow.seconds for flow in flows)
    if known_s > usual_s:
        usual = f"half of all messages took no longer than {usual_s:.3g} s"
        raise ClocksError(f"the clocks are known within {known_s:.3g} s only, and {usual}")
