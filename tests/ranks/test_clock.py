"""Clocks that a test has set wrong: threads share one true clock, so the answers are known."""

import time
from math import inf

import pytest

from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks import clock as clock_module
from dear_mpi.ranks.clock import DRIFT, WANDER, Aligned, CommonClock, Offset, offsets

WRONG_S = (0.0, 3.0, -3.0, 1e-3, 0.0)  # by rank
RATE = 1e-3  # of a rank's clock, above that of rank 0; a thousand times what quartz does


def planted(rank, clock):
    return lambda: clock() + WRONG_S[rank]


@pytest.mark.parametrize("clock", [time.perf_counter, time.time], ids=["perf_counter", "time"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_clocks_that_are_wrong(size, clock):
    answers = run_loopback(size, lambda ranks: offsets(ranks, planted(ranks.rank, clock), rounds=20))
    assert all(found == answers[0] for found in answers)
    assert len(answers[0]) == size
    assert answers[0][0] == Offset(0.0, 0.0, 0.0)
    for offset, wrong_s in zip(answers[0][1:], WRONG_S[1:], strict=False):
        assert abs(offset.offset_s - wrong_s) <= offset.uncertainty_s + 1e-6


def test_a_wide_uncertainty_holds_the_truth():
    """Over links of 20 ms nothing is known beyond 20 ms."""

    def found(ranks):
        slow = EmulatedTransport(ranks, Link(1e9, 20e-3))
        return offsets(slow, planted(ranks.rank, time.perf_counter), rounds=3)

    for offset, wrong_s in zip(run_loopback(3, found)[0], WRONG_S, strict=False):
        assert abs(offset.offset_s - wrong_s) <= offset.uncertainty_s
    assert offset.uncertainty_s >= 20e-3


def test_a_clock_that_is_set_back_meanwhile_does_not_count():
    """At the end of the second of three rounds rank 0's clock is set back by 5 s."""

    def found(ranks):
        readings = iter((0.0, 1.0, 10.0, 5.0, 20.0, 22.0) if ranks.rank == 0 else (3.5, 13.5, 24.0))
        return offsets(ranks, lambda: next(readings), rounds=3)

    assert run_loopback(2, found)[0][1] == Offset(3.5, 3.0, 0.5)


ONE, TWO = (Offset(100.0, 3.0, 1e-5),), (Offset(100.0, 3.0, 1e-5), Offset(200.0, 3.001, 2e-5))
AT_ONCE = (Offset(100.0, 3.0, 1e-5), Offset(100.1, 3.00001, 1e-5))


@pytest.mark.parametrize(("looks", "at_s", "offset_s", "uncertainty_s"), [
    ((), 5.0, 0.0, 0.0),
    (ONE, 150.0, 3.0, 1e-5 + 50 * DRIFT),  # it may drift as far as clocks do
    (ONE, 90.0, 3.0, 1e-5 + 10 * DRIFT),
    (TWO, 150.0, 3.0005, None),  # on the line through both
    (TWO, 210.0, 3.0011, 2e-5 + 10 * (3e-5 / 100 + WANDER)),
    (AT_ONCE, 200.1, 3.00001, 1e-5 + 100 * DRIFT),  # which tell no drift
])  # fmt: skip
def test_an_offset_follows_from_looks(looks, at_s, offset_s, uncertainty_s):
    clock = Aligned(looks)
    assert clock.offset_s(at_s) == pytest.approx(offset_s)
    assert uncertainty_s is None or clock.uncertainty_s(at_s) == pytest.approx(uncertainty_s)
    assert clock.doubt() == ""


@pytest.mark.parametrize(("looks", "said"), [
    ((Offset(0.0, 0.0, inf), Offset(10.0, 0.0, 1e-5)), "no message came back"),
    ((Offset(0.0, 0.0, 1e-5), Offset(10.0, 3.0, 1e-5)), "its clock moved by 3 s in 10 s, so it was set meanwhile"),
    ((Offset(0.0, 0.0, 1e-3), Offset(10.0, 0.0039, 1e-3)), ""),  # 200 ppm of ten seconds, and both uncertainties
    ((Offset(0.0, 0.0, 1e-3), Offset(10.0, 0.0041, 1e-3)), "its clock moved"),
])  # fmt: skip
def test_a_clock_that_was_set_is_in_doubt(looks, said):
    doubt = Aligned(looks).doubt()
    assert doubt.startswith(said)
    assert bool(doubt) == bool(said)


def common(transport, looks):
    rank = transport.rank
    clock = CommonClock(transport, lambda: 3.0 * rank + (1 + RATE * rank) * time.perf_counter())
    for _ in range(looks):
        time.sleep(0.15)
        clock.look()
    readings = transport.gather_values((clock.now() - clock.offset_s(), time.perf_counter()))
    return clock, [reading - now for reading, now in readings], clock.report()


def test_clocks_that_are_apart_become_one(monkeypatch):
    monkeypatch.setattr(clock_module, "APART_S", 0.1)
    (clock, apart, report), *_ = run_loopback(3, lambda transport: common(transport, 2))
    assert not clock.is_one
    assert report["offset_s"] == pytest.approx(6.0, abs=0.1 + 2 * RATE * time.perf_counter())
    assert report["drift"] == pytest.approx(2 * RATE, rel=0.5)
    assert max(map(abs, apart)) < 0.1 * RATE * 0.45 + 10 * report["uncertainty_s"], "the drift is followed"


def test_one_machine_has_one_clock():
    def found(transport):
        clock = CommonClock(transport)
        clock.look()
        return clock.is_one, clock.offset_s(), clock.report()

    for is_one, offset_s, report in run_loopback(3, found):
        assert is_one
        assert offset_s == 0.0
        assert report == {"one_clock": True, "offset_s": 0.0, "uncertainty_s": 0.0, "drift": 0.0, "residual_s": 0.0}
