"""Ranks that arrive late: their delays, what counts of a call, what the model says, and who is fastest then."""

import time
from itertools import product

import numpy as np
import pytest
from rich.console import Console

from dear_mpi.bench.fit import Fit
from dear_mpi.bench.run import Report
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.cost import Network
from dear_mpi.contrib.analysis.arrival import (
    PATTERNS,
    after_last,
    arrival,
    fastest_of,
    in_us,
    parse_patterns,
    priced_us,
    show,
    wait,
)
from dear_mpi.ranks.world import run_world
from tests.bench.test_bench import row

NETWORK = Network(alpha=20e-6, beta=0.8e-9, gamma=0.04e-9)  # 10 Gbit/s


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_delays_are_bounded_known_to_all_and_differ_by_turn(pattern, ranks):
    turns = [tuple(PATTERNS[pattern](turn, ranks)) for turn in range(8 * ranks)]
    assert turns == [tuple(PATTERNS[pattern](turn, ranks)) for turn in range(8 * ranks)]
    assert len(set(turns)) > 1
    assert all(len(delays) == ranks and 0 <= min(delays) <= max(delays) <= 1 for delays in turns)
    assert {delays.index(max(delays)) for delays in turns} == set(range(ranks))  # each is the last at some time


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_in_as_many_turns_as_there_are_ranks_each_is_late_once(ranks):
    for begin in range(0, 4 * ranks, ranks):
        late = [PATTERNS["one-late"](turn, ranks).index(1.0) for turn in range(begin, begin + ranks)]
        assert sorted(late) == list(range(ranks))


@pytest.mark.parametrize("asleep", [True, False])
def test_a_rank_waits_for_its_delay_from_the_common_start(asleep, monkeypatch):
    """On a clock that goes on by 30 us whenever it is read, and by what was slept."""
    now_s, slept = [0.0], []

    def clock():
        now_s[0] += 30e-6
        return now_s[0]

    def sleep(seconds):
        slept.append(seconds)
        now_s[0] += seconds

    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", sleep)
    assert 1e-3 <= wait(-1e-3 / 2, 1e-3, asleep=asleep) <= 1e-3 + 30e-6  # half of it is over
    assert bool(slept) == asleep
    assert sum(slept) <= 0.4e-3
    assert wait(now_s[0], 0.0, asleep=asleep) == pytest.approx(30e-6, abs=40e-6)


def test_a_rank_that_ended_before_the_last_one_came_took_no_time_after_it():
    ends, came = np.array([[5.0, 5.0], [6.0, 9.0]]), np.array([[0.0, 0.0], [4.0, 7.0]])
    assert after_last(ends, came).tolist() == [[1.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize(("text", "message"), [
    ("one-last", "arrival 'one-last' is unknown: did you mean 'one-late'"),
    ("one-late:xyz", "--arrival: delay 'xyz' cannot be read: write it like 2ms; units are ns, us, ms, s"),
    ("one-late:2", "delay '2' has no unit"),
    ("one-late:0s", "delay '0s' must be above zero"),
    ("one-late:11s", "delay '11s' must be at most 10 s"),
    ("ramp,ramp:2ms", "patterns must be different ones, not ramp, ramp"),
    ("ramp,", "--arrival takes one or several with commas between them, not 'ramp,'"),
])  # fmt: skip
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        parse_patterns(text)


def test_late_calls_are_priced_by_their_own_turns():
    """naive on 4 ranks, by hand, where a message takes a second: the root has 6; if rank k is late by far, it has
    everything but the messages of ranks before k left; if the root is late, all. In 4 turns: 6, 6, 5 and 4."""
    second = Fit(Network(beta=1 / (1 << 20)), ("alpha", "beta"), 0.0, 2)
    one_late = [[1e2 * share for share in PATTERNS["one-late"](turn, 4)] for turn in range(4)]

    def priced(world, name, delays_s):
        return priced_us(row(name, 1 << 20), second, world, delays_s)

    def found(world):
        return priced(world, "naive", [[0.0] * 4]), *(
            priced(world, name, one_late) for name in ("naive", "ring", "shared")
        )

    assert run_world(found, threads=4) == (pytest.approx(6e6), pytest.approx(5.5e6), pytest.approx(1.5e6), None)


def test_the_fastest_comes_with_those_it_cannot_be_told_from():
    spread = np.linspace(-1, 1, 11)
    times_us = {"slow": (200 + spread).tolist(), "one": (100 + spread).tolist(), "two": (100.3 + spread).tolist()}
    assert fastest_of(times_us) == ["one", "two"]
    assert in_us({"one": np.array([[1e-6, 2e-6], [3e-6, 1e-6]])}) == {"one": pytest.approx([3.0, 2.0])}


def test_all_patterns_are_timed_beside_balanced_calls():
    look = arrival({"arrival": "one-late:300us,ramp:300us,random:300us"})
    suite = Suite((64, 4096), algorithms=("ring", "naive", "native"), segments=(1 << 16,), iterations=7)
    where = {"ranks": 3, "backend": "loopback (threads)"}
    rows = [row(name, size, **where) for size in suite.sizes for name in ("ring", "naive")]
    report = Report(rows, Fit(NETWORK, ("alpha",), 0.0, 4), suite.names)
    found = run_world(lambda world: look(world, suite, report), threads=3)
    cases = found.data["arrival"]
    assert [(each["bytes"], each["arrival"]) for each in cases] == [*product(suite.sizes, PATTERNS)]
    for each in cases:
        assert (each["wrong"], each["turns"], each["asleep"]) == (0, 7, True)  # threads share an interpreter
        assert each["arrival_us"] == pytest.approx(300)
        assert [its["algorithm"] for its in each["algorithms"]] == ["ring", "naive"]
        assert all(its[name] > 0 for its in each["algorithms"] for name in ("balanced_us", "model_late_us"))
        assert all(its["late_us"] >= 0 for its in each["algorithms"])
        assert list(each["fastest"]) == ["balanced", each["arrival"]]
    screen = Console(record=True, width=200)
    show(screen, cases)
    assert "arrival: all_reduce of 64 B, 3 ranks, fp32, in place: one-late, by up to 300.0 us" in screen.export_text()


def test_the_delay_is_the_median_of_balanced_calls_unless_it_is_given():
    look, suite = arrival({"arrival": "ramp"}), Suite((64,), algorithms=("ring",), segments=(512,), iterations=3)
    report = Report([row("ring", 64, ranks=2)], None, suite.names)
    (found,) = run_world(lambda world: look(world, suite, report), threads=2).data["arrival"]
    assert found["arrival_us"] > 0
    assert found["algorithms"][0]["ratio_low"] is None, "of three samples"
