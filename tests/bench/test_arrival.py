"""Ranks that arrive late: their delays, what counts of a call, what the model says, and who is fastest then."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.bench.analysis.after_arrival import After, Fastest, arrived, show_arrivals
from dear_mpi.bench.analysis.explained import explained
from dear_mpi.bench.analysis.guidelines import pairs
from dear_mpi.bench.analysis.why import Site
from dear_mpi.bench.arrivals import (
    AT_ONCE,
    PATTERNS,
    TOGETHER,
    Arrival,
    Wait,
    after_last,
    delays_of,
    parse_arrivals,
)
from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.fit import Fit, fit_network, modelled, predicted_us
from dear_mpi.bench.peers import against_peers
from dear_mpi.bench.run import BALANCED_TURNS, Report, bench, samples_of, scaled
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.tune import tuned
from dear_mpi.collectives import programs
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.terminal import console
from tests.bench.test_bench import row, synthetic
from tests.bench.test_output import printed

LATE = [name for name in PATTERNS if name != "none"]
NETWORK = Network(alpha=20e-6, beta=0.8e-9, gamma=0.04e-9)  # 10 Gbit/s


@pytest.mark.parametrize("pattern", LATE)
@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_delays_are_bounded_known_to_all_and_differ_by_turn(pattern, ranks):
    arrival = Arrival(pattern, 2e-3)
    turns = [arrival.delays_s(turn, ranks) for turn in range(8 * ranks)]
    assert turns == [Arrival(pattern, 2e-3, first=9).delays_s(turn, ranks) for turn in range(8 * ranks)]
    assert len(set(turns)) > 1
    assert all(len(delays) == ranks and 0 <= min(delays) <= max(delays) <= 2e-3 for delays in turns)
    assert {delays.index(max(delays)) for delays in turns} == set(range(ranks))  # each is the last at some time


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_in_as_many_turns_as_there_are_ranks_each_is_late_once(ranks):
    for begin in range(0, 4 * ranks, ranks):
        late = [PATTERNS["one-late"](turn, ranks).index(1.0) for turn in range(begin, begin + ranks)]
        assert sorted(late) == list(range(ranks))


def test_a_ramp_is_even_and_nobody_is_late_together():
    assert all(sorted(PATTERNS["ramp"](turn, 5)) == [0, 0.25, 0.5, 0.75, 1] for turn in range(20))
    assert PATTERNS["none"](3, 4) == [0.0] * 4


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
    wait = Wait(1e-3, asleep)
    wait.since(-1e-3 / 2)  # the half of it is over
    assert 1e-3 <= wait.came_s <= 1e-3 + 30e-6
    assert bool(slept) == asleep
    assert sum(slept) <= 0.4e-3
    none = Wait(0.0, asleep)
    none.since(now_s[0])
    assert none.came_s == pytest.approx(30e-6, abs=40e-6)


def test_a_rank_that_ended_before_the_last_one_came_took_no_time_after_it():
    assert after_last([[(5.0, 0.0), (5.0, 0.0)], [(6.0, 4.0), (9.0, 7.0)]]) == [[1.0, 0.0], [2.0, 2.0]]
    assert after_last([[], []]) == [[], []]


def test_balanced_calls_wait_as_late_ones_do_where_they_stand_beside_them():
    transport = SimpleNamespace(rank=1, size=3)
    for first in (0, 3):  # of all blocks
        assert replace(TOGETHER, first=first).wait(0, transport) is None
        assert replace(AT_ONCE, first=first).wait(0, transport).delay_s == 0
    assert TOGETHER.as_row() == AT_ONCE.as_row() == {"arrival": "none", "arrival_us": 0}


def test_blocks_go_on_with_their_turns_and_take_turns():
    runs = []

    def run(turns, arrival=TOGETHER):
        runs.append((turns, arrival.pattern, arrival.first))
        return {("ring", 4): Samples([[float(len(runs))] * turns], wrong=len(runs) == 1)}

    def measure(transport):
        interleaved = SimpleNamespace(run=run, case=Case("all_reduce", 4), transport=transport)
        return samples_of(interleaved, Suite((4,), arrival=(Arrival("ramp", 1.0),), iterations=5, warmup=0))

    (found,) = run_loopback(1, measure)
    first, *others = runs
    assert first == (BALANCED_TURNS, "none", 0)
    blocks = ((2, 0), (1, 2), (1, 3), (1, 4))
    assert others == [(turns, pattern, begin) for turns, begin in blocks for pattern in ("none", "ramp")]
    assert {arrival.pattern: (each.times_s, each.wrong) for (arrival, _), each in found.items()} == {
        "none": ([[2.0, 2.0, 4.0, 6.0, 8.0]], 1),  # with the wrong result of the first turns
        "ramp": ([[3.0, 3.0, 5.0, 7.0, 9.0]], 0),
    }


def test_the_scale_is_the_middle_candidates_balanced_median():
    """Of each candidate the median over samples of the slowest rank: 3, 10 and 5."""
    balanced = {
        "a": Samples([[1.0, 2.0, 3.0], [3.0, 1.0, 4.0]], 0),
        "b": Samples([[10.0], [1.0]], 0),
        "c": Samples([[5.0], [1.0]], 0),
    }
    assert scaled(Arrival("ramp"), balanced).scale_s == 5.0
    assert scaled(Arrival("ramp", 7.0), balanced).scale_s == 7.0


def test_what_is_typed():
    assert parse_arrivals("random:50ms,none,ramp") == (Arrival("random", 0.05), Arrival("ramp"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one-last", "arrival 'one-last' is unknown: did you mean 'one-late'"),
        ("one-late:xyz", "delay 'xyz' cannot be read: write it like 2ms; units are ns, us, ms, s"),
        ("one-late:2", "delay '2' has no unit"),
        ("one-late:", "delay '' cannot be read"),
        ("one-late:0s", "delay '0s' must be above zero"),
        ("none:2ms", "arrival 'none:2ms': none has no delay"),
        ("ramp,ramp:2ms", "patterns must be different ones, not ramp, ramp"),
        ("ramp,", "--arrival takes one or several with commas between them, not 'ramp,'"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        parse_arrivals(text)


@pytest.mark.parametrize(
    ("settings", "ranks", "message"),
    [
        ({"cadence": "streaming"}, 2, "arrival one-late needs the cadence isolated, not streaming: in a row of calls"),
        ({}, 1, "arrival one-late needs at least 2 ranks, not 1"),
        ({"arrival": (Arrival("late"),)}, 2, "arrival 'late' is unknown"),
        ({"arrival": (Arrival("ramp", 0.0),)}, 2, "arrival ramp needs a delay above 0 s, up to 10 s, not 0"),
        ({"arrival": (Arrival("ramp", 11.0),)}, 2, "arrival ramp needs a delay above 0 s, up to 10 s, not 11"),
        ({"arrival": (Arrival("ramp"), Arrival("ramp", 1.0))}, 2, "arrival must be different ones, not ramp, ramp"),
    ],
)
def test_what_cannot_be_measured(settings, ranks, message):
    suite = Suite(sizes=(64,), **{"arrival": (Arrival("one-late"),), **settings})
    with pytest.raises(ArgumentError, match=message):
        run_world(lambda world: bench(suite, world), threads=ranks)


def test_rows_of_all_patterns_come_beside_balanced_ones(capsys):
    asked = tuple(Arrival(pattern, 300e-6) for pattern in LATE)
    suite = Suite((64, 4096), algorithms=("ring", "naive"), iterations=5, arrival=asked)
    report = run_world(lambda world: bench(suite, world), threads=3)
    assert [(row.arrival, row.arrival_us, row.algorithm) for row in report.rows] == [
        (arrival, pytest.approx(300 * (arrival != "none")), algorithm)
        for _ in suite.sizes
        for arrival in PATTERNS
        for algorithm in suite.algorithms
    ]
    assert all(row.wrong == 0 and row.samples == 5 and row.min_us > 0 for row in report.rows)
    assert report.asleep  # threads share an interpreter
    assert all(row.model_us > 0 for row in report.rows)
    found = run_world(lambda world: show_arrivals(console(world), report))
    assert [(each["bytes"], each["arrival"]) for each in found] == [
        (size, name) for size in suite.sizes for name in LATE
    ]
    assert all(line.startswith("#") for line in capsys.readouterr().out.splitlines())


# A rank that is late by a balanced call's time, or more: the time after its arrival over that time, by the model.
@pytest.mark.parametrize(
    ("algorithm", "last", "mean"), [("ring", 1.00, 1.00), ("double_tree", 0.79, 0.85), ("naive", 0.52, 0.78)]
)
def test_what_is_left_after_a_late_rank_by_the_model(algorithm, last, mean):
    """1 MiB on 16 ranks, NETWORK: if it is the last rank; in the mean over all ranks, as one-late measures it."""
    written = programs(algorithm, "all_reduce", 16)
    balanced_s = cost(written, 1 << 18, 4, NETWORK).time_s

    def left(late):
        arrivals_s = [balanced_s * (rank == late) for rank in range(16)]
        return cost(written, 1 << 18, 4, NETWORK, arrivals_s=arrivals_s).time_s / balanced_s - 1

    ratios = [left(late) for late in range(16)]
    assert ratios[-1] == pytest.approx(last, abs=0.005)
    assert sum(ratios) / 16 == pytest.approx(mean, abs=0.005)


def late_row(algorithm, nbytes=1 << 20, ranks=4, arrival="one-late", arrival_us=1e5, **facts):
    return row(algorithm, nbytes, ranks=ranks, arrival=arrival, arrival_us=arrival_us, **facts)


def test_a_row_is_predicted_by_its_own_turns():
    """naive on 4 ranks, by hand, where a message takes a second: the root has 6; if rank k is late by far, it has
    everything but the messages of ranks before k left; if the root is late, all. In 4 turns: 6, 6, 5 and 4."""
    second = Fit(Network(beta=1 / (1 << 20)), ("alpha", "beta"), 0.0, 2)
    assert predicted_us(replace(late_row("naive"), arrival="none", arrival_us=0.0), second) == pytest.approx(6e6)
    assert predicted_us(late_row("naive", arrival_us=1e8), second) == pytest.approx(5.5e6)
    assert predicted_us(late_row("ring", arrival_us=1e8), second) == pytest.approx(6 / 4 * 1e6)
    assert predicted_us(late_row("shared"), second) is None
    assert len(delays_of(late_row("naive"), 16)) == 4
    assert len(delays_of(late_row("naive", arrival="random"), 16)) == 9  # samples
    assert len(delays_of(late_row("naive", arrival="random"), 7)) == 7


def test_the_network_guidelines_rules_and_reasons_are_of_balanced_calls():
    made = synthetic(NETWORK, ("ring", "naive"))
    balanced = [replace(each, ci_low_us=each.p50_us, ci_high_us=each.p50_us) for each in made]
    late = [replace(each, arrival="ramp", arrival_us=9.0, p50_us=each.p50_us / 100) for each in balanced]
    both = [*balanced, *late]
    assert fit_network(both) == fit_network(balanced)
    assert fit_network(late) is None
    assert tuned(both) == tuned(balanced)
    assert len(list(pairs(both))) == len(list(pairs(balanced))) > 0
    assert [each.title for each in explained(both, ("ring",), {4: None}, Site(), 4)] == [
        each.title for each in explained(balanced, ("ring",), {4: None}, Site(), 4)
    ]
    assert {row.peer for row in against_peers(both)} == {"ring"}
    assert {row.over_peer for row in against_peers(late) if row.algorithm == "ring"} == {1.0}


def timed(algorithm, us, arrival="none", model_us=None, **facts):
    """Nine samples of this median."""
    times_us = [[us * (1 + 0.001 * number) for number in range(-4, 5)]] * 4
    ends = {"ci_low_us": us * 0.99, "ci_high_us": us * 1.01, "times_us": times_us}
    return row(algorithm, 1024, us, arrival=arrival, model_us=model_us, **{**ends, **facts})


def test_late_calls_are_held_against_balanced_ones():
    rows = [
        *(timed("native", 50.0), timed("ring", 100.0, model_us=90.0), timed("naive", 200.0, model_us=180.0)),
        timed("native", 40.0, "one-late"),
        timed("ring", 100.0, "one-late", 90.0),
        timed("naive", 60.0, "one-late", 80.0),
    ]
    (found,) = arrived(Report(rows, {}, ("native", "ring", "naive"), {}))
    told = found.as_report()
    assert [(each["algorithm"], each["model_ratio"]) for each in told["algorithms"]] == [
        ("native", None),
        ("ring", 1.0),
        ("naive", pytest.approx(80 / 180)),
    ]
    for each, ratio in zip(told["algorithms"], (0.8, 1.0, 0.3), strict=True):
        assert each["ratio"] == pytest.approx(ratio)
        assert (each["ratio_low"], each["ratio_high"]) == pytest.approx((ratio, ratio))  # all batches are alike
    assert told["fastest"] == [
        {"arrival": "none", "fastest": "native", "as_good": [], "model": "ring", "agree": True},
        {"arrival": "one-late", "fastest": "native", "as_good": [], "model": "naive", "agree": True},
    ]
    assert found.fastest[1].sentence == ("fastest, one-late: native; by the model naive of ring, naive: which agrees")


def test_noise_of_both_drops_out_of_late_over_balanced():
    """What hits both sides for 30 turns is no doubt about their ratio."""
    rng, busy = np.random.default_rng(5), np.where(np.arange(120) // 30 == 2, 3.0, 1.0)
    calls = {us: [(us * busy * np.exp(0.01 * rng.standard_normal(120))).tolist()] * 4 for us in (150.0, 100.0)}
    after = After("ring", *(timed("ring", us, times_us=times_us) for us, times_us in calls.items()))
    assert after.ratio == pytest.approx(1.5)
    assert 1.45 < after.interval.low < 1.5 < after.interval.high < 1.55


def test_few_samples_have_no_interval_of_late_over_balanced():
    few = [timed("ring", us, times_us=[[us] * 5] * 4) for us in (60.0, 50.0)]
    after = After("ring", *few)
    assert after.cells[3] == "1.20 (too few samples)"
    told = after.as_report()
    assert (told["ratio"], told["ratio_low"], told["ratio_high"]) == (1.2, None, None)


@pytest.mark.parametrize(
    ("ring", "naive", "agree", "said"),
    [
        (100.0, 50.0, False, "fastest, balanced: naive; by the model ring of ring, naive: which DIFFERS"),
        (50.0, 100.0, True, "fastest, balanced: ring; by the model ring of ring, naive: which agrees"),
        (
            *(100.0, 100.5, None),
            "fastest, balanced: ring (or naive: their intervals overlap); by the model ring of ring, naive: "
            "their times do not tell",
        ),
    ],
)
def test_whether_the_model_has_the_fastest_one(ring, naive, agree, said):
    rows = {"ring": timed("ring", ring, model_us=1.0), "naive": timed("naive", naive, model_us=2.0)}
    found = Fastest.of(rows)
    assert (found.agree, found.sentence) == (agree, said)
    assert Fastest.of({**rows, "native": timed("native", 9.0, wrong=1)}).measured == found.measured
    alone = Fastest.of({"ring": rows["ring"], "native": timed("native", 9.0)})
    assert (alone.modelled, alone.sentence) == (None, "fastest, balanced: native")


def test_every_form_names_the_arrival():
    rows = timed("ring", 10.0), timed("ring", 5.0, "ramp", arrival_us=10.0)
    table, osu, csv, markdown = (printed(form, *rows) for form in ("table", "osu", "csv", "markdown"))
    assert "arrive as --arrival ramp says" in table
    assert osu.count("# Ranks arrive as --arrival ramp says") == 1
    assert "arrival_us" in csv.splitlines()[0]
    assert markdown.splitlines()[0].startswith("| arrival | collective |")
    assert printed("markdown", rows[0]).splitlines()[0].startswith("| collective |")


def test_models_of_late_rows_are_of_the_balanced_network():
    balanced = synthetic(NETWORK, ("ring", "naive"))
    fit, models_us = modelled([*balanced, late_row("naive", ranks=4)], [], None)
    assert fit is not None
    assert models_us[-1] == pytest.approx(predicted_us(late_row("naive"), Fit(NETWORK, (), 0.0, 2)), rel=0.02)
