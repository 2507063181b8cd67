"""Offsets of clocks that a test has set wrong; threads share one true clock, so that the answers are known."""

import time

import pytest

from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks.clock import Offset, offsets

WRONG_S = (0.0, 3.0, -3.0, 1e-3, 0.0)  # by rank


def planted(rank, clock):
    return lambda: clock() + WRONG_S[rank]


@pytest.mark.parametrize("clock", [time.perf_counter, time.time], ids=["perf_counter", "time"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_clocks_that_are_wrong(size, clock):
    answers = run_loopback(size, lambda ranks: offsets(ranks, planted(ranks.rank, clock), rounds=20))
    assert all(found == answers[0] for found in answers)
    assert len(answers[0]) == size
    assert answers[0][0] == Offset(0.0, 0.0)
    for offset, wrong_s in zip(answers[0][1:], WRONG_S[1:], strict=False):
        assert abs(offset.seconds - wrong_s) <= offset.uncertainty_s + 1e-6


def test_a_wide_uncertainty_holds_the_truth():
    """Over links of 20 ms nothing is known beyond 20 ms."""

    def found(ranks):
        slow = EmulatedTransport(ranks, Link(1e9, 20e-3))
        return offsets(slow, planted(ranks.rank, time.perf_counter), rounds=3)

    for offset, wrong_s in zip(run_loopback(3, found)[0], WRONG_S, strict=False):
        assert abs(offset.seconds - wrong_s) <= offset.uncertainty_s
    assert offset.uncertainty_s >= 20e-3


def test_a_clock_that_is_set_back_meanwhile_does_not_count():
    """At the end of the second of three rounds rank 0's clock is set back by 5 s."""

    def found(ranks):
        readings = iter((0.0, 1.0, 10.0, 5.0, 20.0, 22.0) if ranks.rank == 0 else (3.5, 13.5, 24.0))
        return offsets(ranks, lambda: next(readings), rounds=3)

    assert run_loopback(2, found)[0][1] == Offset(3.0, 0.5)


def test_differences_beyond_what_is_known():
    assert Offset(3.0, 0.1).is_beyond(Offset(2.0, 0.1))
    assert not Offset(3.0, 0.5).is_beyond(Offset(2.0, 0.6))
