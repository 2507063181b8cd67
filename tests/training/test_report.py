"""The figures of a run add up, and what they do not show is said in words."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import FEWEST_ORDERED, FEWEST_SAMPLES
from dear_mpi.reporting.terminal import console
from dear_mpi.see.tables import ALL_REACHED, best_table, notes, show_comparison, slow_baseline
from dear_mpi.training.events import Times
from dear_mpi.training.runs.compare import Comparison, compared
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job, timing
from dear_mpi.training.schedules import SCHEDULES, Wfbp
from tests.training_checks import README, settings

NETWORK = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5}


def gathering(ranks):
    """A transport that has gathered this from its ranks."""
    return SimpleNamespace(gather_values=lambda _: ranks)


@given(seed=st.integers(0, 1000), ranks=st.integers(1, 4), counts=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_the_figures_are_those_of_one_iteration_on_one_rank(seed, ranks, counts):
    rng = np.random.default_rng(seed)
    parts = [[rng.exponential(size=(count, 4)) for count in counts] for _ in range(ranks)]
    blocks = [[[Times(sum(row), *row[1:]) for row in block.tolist()] for block in rank] for rank in parts]
    figures = timing(gathering(blocks), Wfbp, blocks[0], NETWORK)
    turns = zip(*blocks, strict=True)
    slowest = [np.max([[times.iteration_s for times in block] for block in turn], axis=0) for turn in turns]
    assert figures.iteration_s == pytest.approx(np.concatenate(slowest).tolist())
    steady = np.concatenate([block[1:] if len(block) > 1 else block for block in slowest])
    assert figures.steady_s == pytest.approx(steady.tolist())
    middle_s = float(np.median(steady))
    assert figures.forward_s + figures.backward_s + figures.exposed_comm_s <= middle_s * (1 + 1e-12)
    assert figures.forward_s + figures.backward_s + figures.exposed_comm_s + figures.rest_s == pytest.approx(middle_s)
    assert figures.bound_s == figures.forward_s + max(figures.backward_s, 1.0)


def test_a_rank_that_computes_long_and_one_that_waits_long_are_not_mixed():
    """44.6 + 38.1 were more than the 70.6 of the iteration."""
    ranks = [[[Times(70.0, 20.0, 24.6, 25.0)] * 3], [[Times(70.6, 15.0, 17.0, 38.1)] * 3]]
    figures = timing(gathering(ranks), Wfbp, ranks[0], NETWORK)
    assert (figures.forward_s, figures.backward_s, figures.exposed_comm_s) == pytest.approx((15.0, 17.0, 38.1))


STEADY = np.linspace(0.99, 1.01, 30)
VERDICTS = {
    "faster": STEADY / 2,
    "slower": STEADY * 2,
    "cannot tell": STEADY[::-1] * 1.0001,
    "too noisy": [0.1] * 14 + [1.0, 10.0] + [20.0] * 14,
}


@pytest.mark.parametrize("word", VERDICTS)
def test_a_speed_up_has_a_word(word):
    baseline = list(STEADY)
    assert compared(VERDICTS[word], baseline)["verdict"] == word
    assert compared(baseline, baseline)["verdict"] == "baseline"


def test_an_interval_that_reaches_1_in_print_tells_nothing_apart():
    assert compared([1.0004] * 30, [1.0] * 30)["verdict"] == "cannot tell"
    assert compared([1.0006] * 30, [1.0] * 30)["verdict"] == "slower"


def test_few_iterations_tell_nothing_apart():
    fast, slow = [0.5] * (FEWEST_SAMPLES - 1), [1.0] * 30
    assert compared(fast, slow)["verdict"] == compared(slow, fast)["verdict"] == "cannot tell"
    assert compared([0.5] * FEWEST_SAMPLES, slow)["verdict"] == "faster"


def test_noise_is_not_shown_as_a_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    config = Config.of(settings(iterations=3))
    world, rows = run_world(lambda world: (world, Comparison(config, world, ["wfbp", "dear"]).run()), threads=2)
    rows[1] |= {"verdict": "too noisy", "speedup": 0.764, "ci_low": 0.1, "ci_high": 1.721}
    show_comparison(world, rows)
    shown = " ".join(capsys.readouterr().out.split())
    assert "0.764" not in shown
    assert "…" not in shown, "80 columns have room for the table"
    assert all(each["rest_s"] >= 0 for each in rows)
    assert "noisy" in shown


def row(**figures):
    given = {"schedule": "dear", "ranks": 4, "buckets": 9, "ideal_speedup": 1.25, "median_s": 1.0, "exposed_s": {}}
    given |= {"verdict": "cannot tell", "hidden": None, "period": 1, "wire": "fp32", "accuracy": None}
    given |= dict.fromkeys(("compute_s", "exposed_comm_s", "rest_s", "predicted_s", "bound_s"), 0.0)
    return given | {"iterations": FEWEST_ORDERED} | figures


def test_it_is_said_what_intervals_do_not_show():
    first = row(schedule="wfbp")
    assert notes([first, row()]) == []
    (said,) = notes([first | {"buckets": 1}, row(buckets=1)])
    assert said.startswith("With one bucket, only the layers before the first trained one can overlap communication")

    (said,) = notes([first | {"iterations": 5}, row()])
    assert said.startswith("Fewer than 6 iterations have no 95 % interval")

    few = {"iterations": FEWEST_SAMPLES}
    assert notes([first | few, row()]) == []
    (said,) = notes([first | few, row(verdict="slower")])
    assert said.startswith("Fewer than 15 iterations do not show whether the machine was slow for several in a row")


def test_rows_that_reach_their_bounds_are_told():
    rows = [row(schedule=name, ideal_speedup=1.0, bound_s=0.9, rest_s=0.1) for name in ("wfbp", "dear")]
    assert notes(rows)[0] == ALL_REACHED
    assert "reaches the bound" not in " ".join(notes([rows[0], rows[1] | {"median_s": 1.1}]))


@pytest.mark.parametrize(("slow", "reach", "said"), [
    (1.1, 0.01, "wfbp takes 1100.0 ms with cut:4MB, 1000.0 ms with 25MB: with the former, speed-ups are 10.0%"),
    (1.01, 0.001, ""),
    (1.1, 0.2, ""),  # the difference may be noise
])  # fmt: skip
def test_a_baseline_with_bad_buckets_is_told(slow, reach, said):
    def timed(schedule, fusion, median_s):
        near = {"median_low_s": median_s - reach, "median_high_s": median_s + reach}
        return row(schedule=schedule, asked_fusion=fusion, median_s=median_s, **near)

    rows = [timed("wfbp", "25MB", 1.0), timed("dear", "25MB", 0.9), timed("wfbp", "cut:4MB", slow)]
    assert slow_baseline(rows) == (f"warning: {said} too high." if said else "")


def test_the_best_fusions_are_compared_as_any_others(capsys):
    """The table had a ratio of medians, whatever the samples said of it."""
    fused = {"fusion": "25MB", "asked_fusion": "25MB", "median_low_s": 0.9, "median_high_s": 1.1}
    times = np.random.default_rng(0).normal(1.0, 0.1, (2, 15))
    named = zip(("wfbp", "dear"), times.tolist(), strict=True)
    console().print(best_table([row(schedule=name, iteration_s=each, **fused) for name, each in named]))
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in shown if line.startswith(("wfbp", "dear"))] == ["baseline", "tell"]


def test_the_ideal_gain_is_that_of_the_bounds():
    model = {"model": "synthetic:resnet50", "forward_time": 0.0, "iterations": 1, "data": None, "batch": None}
    rows = run_world(lambda world: Comparison(Config.of(settings(**model)), world, ["dear", "wfbp"]).run(), threads=1)
    assert rows[0]["ideal_speedup"] == 1.0
    assert rows[1]["ideal_speedup"] > 0


@pytest.mark.parametrize(("name", "least"), [("wfbp", 0.81), ("dear", 0.76), ("sequential", 0.91), ("fsdp", 0.915)])
def test_of_a_batch_that_is_split_only_one_part_hides_anything(name, least):
    """By hand: of four parts, each of 0.05 s and 0.1 s, one hides what takes 0.31 s; the bound was that of a whole."""
    network = {"all_reduce": 0.31, "reduce_scatter": 0.155, "all_gather": 0.155}
    assert SCHEDULES[name].least(0.2, 0.4, network, 4) == pytest.approx(least)


@pytest.mark.parametrize("count", [1, 2, 51, 60])
def test_iterations_before_the_last_cut_never_count(count):
    """A run barely longer than its tuning reported the times of its trials."""
    blocks = [[Times(float(number), 0.0, 0.0, 0.0) for number in range(count)]]
    figures = timing(gathering([blocks]), Wfbp, blocks, NETWORK, fill=52)
    assert figures.steady_s == list(map(float, range(min(52, count - 1), count)))


@pytest.mark.parametrize("model", ALL_MODELS)
def test_presets_have_several_buckets(model):
    data = {"data": README} if model == "gpt" else {}

    def buckets(world):
        with Job(Config.of({"model": model} | data), world, ["dear"]) as job:
            return len(job.group.buckets)

    assert run_world(buckets, threads=1) > 2
