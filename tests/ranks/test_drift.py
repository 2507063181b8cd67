"""The clock of rank 0 is known on every rank: also where clocks are apart, and run at different speeds."""

import time

import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks import clock as clock_module
from dear_mpi.ranks.clock import CommonClock

RATE = 1e-3  # of a rank's clock, above that of rank 0; a thousand times what quartz does


def of_rank(rank):
    return lambda: 3.0 * rank + (1 + RATE * rank) * time.perf_counter()


def common(transport, looks):
    clock = CommonClock(transport, of_rank(transport.rank))
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
