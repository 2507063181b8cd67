"""A point ends when its medians are known, or its time is over; never before there are samples for an interval."""

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dear_mpi.bench import run as run_module
from dear_mpi.bench.case import Samples
from dear_mpi.bench.run import bench, paced
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import AtMoment, Context, decided_start
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from tests.bench.runs import BAD_SUITES


class Clock:
    def __init__(self, turn_s):
        self.now_s, self.turn_s, self.turns = 0.0, turn_s, []

    def run(self, turns, spread=0.0):
        self.now_s += turns * self.turn_s
        self.turns.append(turns)
        return {"it": Samples([[1.0 + spread * (number % 2) for number in range(turns)]])}


def of_pace(monkeypatch, clock, spread=0.0, blocks=1, **how):
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    pace = Suite((4,), **how)
    (found,) = run_loopback(1, lambda one: paced(pace, lambda turns: clock.run(turns, spread), one, blocks))
    return len(found["it"].times_s[0])


@pytest.mark.parametrize(("turn_s", "spread", "turns"), [
    (0.001, 0.0, [1, 1, 1, FEWEST_SAMPLES]),  # quiet: it ends as soon as it is known
    (3.0, 1.0, [1, FEWEST_SAMPLES]),  # one turn of warm-up is more than a quarter of the time
])  # fmt: skip
def test_a_point_has_samples_for_an_interval_however_long_that_takes(turn_s, spread, turns, monkeypatch):
    clock = Clock(turn_s)
    assert of_pace(monkeypatch, clock, spread=spread, budget_s=2.0) == FEWEST_SAMPLES
    assert clock.turns == turns


def test_a_noisy_point_ends_with_its_time(monkeypatch):
    clock = Clock(0.01)
    assert 150 <= of_pace(monkeypatch, clock, spread=1.0, budget_s=2.0) <= 200
    assert clock.now_s <= 2.0


def with_late_starts(counted):
    """A point whose first block of turns has so many samples that count; of later ones half do."""
    blocks = [FEWEST_SAMPLES - counted]

    def run(turns):
        late = blocks.pop() if blocks else turns // 2
        return {"it": Samples([[1.0] * (turns - late)], late=late)}

    pace = Suite((4,), budget_s=1e-9, warmup=0)
    (found,) = run_loopback(1, lambda one: paced(pace, run, one, 1))
    return found["it"]


def test_a_point_has_samples_for_an_interval_however_many_come_late():
    assert [len(with_late_starts(counted).times_s[0]) for counted in (6, 5, 1)] == [6, 5 + 3, 1 + 3 + 3]


@pytest.mark.parametrize("blocks", [1, 4])
def test_so_many_iterations_are_taken(monkeypatch, blocks):
    assert of_pace(monkeypatch, Clock(9.0), spread=1.0, blocks=blocks, iterations=10, warmup=0) == 10


@pytest.mark.parametrize("iterations", [2, None])
def test_wrong_results_of_warm_up_count_and_its_times_do_not(iterations):
    """One element is wrong in the first call."""
    ran = []

    def run(turns):
        ran.append(turns)
        return {"it": Samples([[1.0] * turns], wrong=int(len(ran) == 1))}

    pace = Suite((4,), warmup=2, iterations=iterations)
    (found,) = run_loopback(1, lambda one: paced(pace, run, one, 1))
    assert (found["it"].wrong, len(found["it"].times_s[0])) == (1, sum(ran) - 2)


def test_late_starts_in_the_middle_of_a_run_measure_all_of_it_from_barriers(monkeypatch, capsys):
    """On all ranks: each point has its rows, all start alike, and it is said once."""
    settings = Suite((4, 64), ("all_reduce",), ("ring",), iterations=6, warmup=0)
    take, seen = run_module.paced, Counter()

    def paced(*how):
        found = take(*how)
        me = threading.get_ident()
        seen[me] += 1
        return {key: replace(each, late=9 * (seen[me] == 2)) for key, each in found.items()}

    monkeypatch.setattr(run_module, "paced", paced)
    report = run_world(lambda world: bench(settings, world), threads=3)
    assert [row.bytes for row in report.rows] == [4, 64]
    assert {row.start for row in report.rows} == {"barrier"}
    said = "all samples of this run start at barriers; all points are measured again"
    assert capsys.readouterr().err.count(said) == 1


@pytest.mark.parametrize(("late", "name"), [(False, "clock"), (True, "barrier")])
def test_how_samples_start_is_decided_once_for_the_run(late, name, monkeypatch, capsys):
    """By a trial of the clock, on all ranks alike; what follows is told what was decided."""
    start = SimpleNamespace(name="clock", holds=lambda: not late)
    monkeypatch.setattr(Context, "of", lambda world, conditions: SimpleNamespace(start=start))
    found = run_world(lambda world: world.transport.gather_values(decided_start(world, Suite((4,)))), threads=2)
    assert found == [name, name]
    assert ("all samples of this run start at barriers" in capsys.readouterr().err) == late


LEAD_S = 1e-3


@pytest.mark.parametrize(("awake_s", "in_time"), [
    ((0.0, LEAD_S / 2, LEAD_S, LEAD_S + 1e-6), True),
    ((0.0, 1.1 * LEAD_S, 1.2 * LEAD_S), False),  # the moment was over when it looked
    ((0.0, LEAD_S / 2, LEAD_S / 2, 3 * LEAD_S), False),  # it lost its core while it waited
])  # fmt: skip
def test_a_rank_without_its_core_at_the_moment_is_late(awake_s, in_time):
    times_s = iter((*awake_s, 9.0))
    clock = SimpleNamespace(now=lambda: next(times_s), offset_s=lambda: 0.0)
    start = AtMoment(SimpleNamespace(latest=lambda value: value), clock)
    start.lead_s = LEAD_S
    assert (start(), start.late) == (in_time, not in_time)


def test_lists_are_measured_in_one_run():
    lists = {"placements": ("in", "out"), "dtypes": ("fp32", "int8"), "ops": ("sum", "max")}
    settings = Suite((64,), ("all_reduce", "all_gather"), ("ring",), **lists, iterations=2)
    rows = run_world(lambda world: bench(settings, world), threads=2).rows
    assert {(row.collective, row.placement, row.dtype, row.op) for row in rows} == {
        *(("all_reduce", place, dtype, op) for place in PLACES for dtype in ("fp32", "int8") for op in ("sum", "max")),
        *(("all_gather", place, dtype, "none") for place in PLACES for dtype in ("fp32", "int8")),
    }
    assert len(rows) == 8 + 4
    assert not any(row.wrong for row in rows)


PLACES = ("in place", "out of place")


CLOCK = ({"start": "clock"}, "start 'clock' needs isolated calls under MPI")


@pytest.mark.parametrize(("how", "message"), [*BAD_SUITES, CLOCK])
def test_what_cannot_be_measured_is_refused(how, message):
    with pytest.raises(ArgumentError, match=message):
        run_world(lambda world: bench(Suite(**{"sizes": (64,)} | how), world), threads=3)
