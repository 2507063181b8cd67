"""Recordings of ranks, with clocks of their own, become one run or are refused; what was inside of collectives."""

from dataclasses import replace

import pytest

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.ranks.clock import Aligned, Offset
from dear_mpi.training.events.spans import (
    COMPUTE,
    ClocksError,
    Iteration,
    Rank,
    Recording,
    Span,
    merged,
)

AHEAD_S = 1000.0  # the clock of rank 1
UNCERTAIN_S = 0.01
SAID = {"collective": "all_gather", "algorithm": "ring", "bucket": 3}


def noted(rank, sent_s, number=7):
    """Rank 0 sends 4 bytes at 10 s, rank 1 waits for them from 9 s to 11 s; or the other way round at another time."""
    peer, to = 1 - rank, rank == 1
    parts = [Part("starting", 0, 0, peer, to, 0, 4), Part("ending", 0, 0, peer, to, 0, 4)]
    times = [sent_s, sent_s + 0.5, sent_s + 1] if rank == 0 else [8.0, 9.0, 11.0]
    return Noted(number, SAID, parts, times)


def recording(rank, *, sent_s=10.0, uncertainty_s=UNCERTAIN_S, looks=None):
    own = noted(rank, sent_s)
    done = Rank(
        f"rank {rank}",
        (Iteration(0, 8.0, 12.0),),
        (Span(COMPUTE, "forward", "forward a", 8.0, 9.5),),
        rank,
        (own.earlier(-AHEAD_S * rank),),
    )
    if rank == 0:
        return Recording("dear", 2, done, Aligned())
    shifted = replace(
        done,
        iterations=(Iteration(0, 8.0 + AHEAD_S, 12.0 + AHEAD_S),),
        spans=(done.spans[0]._replace(begin_s=8.0 + AHEAD_S, end_s=9.5 + AHEAD_S),),
    )
    looks = looks or (Offset(AHEAD_S, AHEAD_S, uncertainty_s), Offset(AHEAD_S + 20, AHEAD_S, uncertainty_s))
    return Recording("dear", 2, shifted, Aligned(looks))


def test_times_are_by_the_clock_of_rank_0():
    run = merged([recording(0), recording(1)])
    other = run.ranks[1]
    assert other.iterations == (Iteration(0, 8.0, 12.0),)
    assert other.spans[0].begin_s == 8.0
    assert list(other.noted[0].times) == [8.0, 9.0, 11.0]
    assert UNCERTAIN_S < run.uncertainty_s < 2 * UNCERTAIN_S
    (flow,) = run.flows
    assert flow[:4] == (0, 10.0, 1, 11.0)


@pytest.mark.parametrize(("how", "said"), [
    (
        {"looks": (Offset(AHEAD_S, AHEAD_S, 1e-3), Offset(AHEAD_S + 20, AHEAD_S + 3, 1e-3))},
        "clocks of ranks 0 and 1 cannot",
    ),
    ({"sent_s": 11.1}, "rank 1 has a message 0.1 s before rank 0 sent it"),
    ({"uncertainty_s": 2.0}, "are known within .* only, and half of all messages took no longer than 1 s"),
], ids=["set", "before it was sent", "worse than messages"])  # fmt: skip
def test_clocks_that_cannot_be_known_are_refused(how, said):
    with pytest.raises(ClocksError, match=said):
        merged([recording(0, **({"sent_s": how["sent_s"]} if "sent_s" in how else {})), recording(1, **how)])


def test_a_message_may_come_before_it_was_sent_by_as_much_as_clocks_are_uncertain():
    parts = [Part("starting", 0, 1, 1, False, 0, 4)], [Part("ending", 0, 1, 0, True, 0, 4)]
    early = Noted(8, SAID, parts[0], [12.0, 12.1]), Noted(8, SAID, parts[1], [11.0 + AHEAD_S, 11.995 + AHEAD_S])
    both = [recording(0), recording(1)]
    both = [
        replace(each, rank=replace(each.rank, noted=(*each.rank.noted, more)))
        for each, more in zip(both, early, strict=True)
    ]
    assert min(flow.seconds for flow in merged(both).flows) == pytest.approx(-0.005)


def test_collectives_that_not_all_ranks_have_noted_any_more_are_left_out():
    both = [recording(0), recording(1)]
    older = replace(both[0], rank=replace(both[0].rank, noted=(noted(0, 1.0, number=6), *both[0].rank.noted)))
    (their,) = merged([older, both[1]]).collectives
    assert {rank: noted.number for rank, noted in their.items()} == {0: 7, 1: 7}
