"""Ranks of different speed: how long an iteration then is, its parts, and that all schedules meet the same noise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.simulate.model import Model
from dear_mpi.simulate.scenario import check_finite
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.uneven import Jitter
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.log.log import Log
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.virtual_trainer import Tally
from tests.simulate.predicted import predicted

ONE_LAYER = Model(
    name="one layer",
    layout=Layout.of([[("weight", (64,))]], itemsize=4, ranks=2),
    names=("dense",),
    wire="fp32",
    costs=Costs(forward_s=(1.0,), backward_s=(2.0,)),
)
QUICK = {"models": ("synthetic:resnet50",), "ranks": (8,), "network": "10gbit,50us", "forward_s": 0.05}


def simulated(**settings):
    return simulate(Settings(**QUICK | {"schedules": tuple(SCHEDULES), "fusions": ("25MB",)} | settings))


def in_turn(turn, place):
    """Rank 0 takes twice as long in each other turn, and rank 1 in those between."""
    return np.array([2.0, 1.0] if turn % 2 == 0 else [1.0, 2.0])


def took(name, iterations):
    free = {"prices": lambda buckets: lambda collective, bucket: 0.0}
    return predicted(ONE_LAYER, name, "25MB", **free, iterations=iterations, noise=in_turn)


@pytest.mark.parametrize("name", ["sequential", "wfbp", "dear"])
@pytest.mark.parametrize("iterations", [1, 2, 3, 20])
def test_what_one_rank_is_behind_the_other_counts_once(name, iterations):
    """Every iteration waits for the one that is slow in it, for 6 s. Under DeAR that shows in the next one: clocks are
    6 and 3 behind the first, 9 and 12 behind the second; the longest of each would be 6 and 9."""
    assert took(name, iterations).iteration_s == pytest.approx(6.0)


@pytest.mark.parametrize("iterations", [1, 2, 3, 20])
def test_the_parts_of_one_rank_add_up(iterations):
    for name in ("sequential", "wfbp", "dear"):
        found = took(name, iterations)
        parts = (found.forward_s, found.backward_s, found.exposed_s, found.update_s, found.rest_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(found.iteration_s)
        assert sum(wait.seconds for wait in found.waits) == pytest.approx(found.exposed_s)
    compute_s = found.forward_s + found.backward_s
    assert (compute_s, found.rest_s) == pytest.approx((4.5, 0.0) if iterations % 2 == 0 else (compute_s, found.rest_s))


def clock(*, begin, end, compute):
    """A tally of one iteration between these clocks of all ranks."""
    fabric = SimpleNamespace(now=lambda: np.array(begin), log=Log())
    tally = Tally(fabric)
    fabric.log.begin(0, None)
    fabric.log.did("forward", 0, np.zeros(len(compute)), np.array(compute))
    fabric.now = lambda: np.array(end)
    tally.add()
    return tally


@pytest.mark.parametrize(
    ("clocks", "rank", "seconds"),
    [
        ({"begin": [0.0, 0.0], "end": [3.0, 3.0], "compute": [1.0, 2.0]}, 1, (3.0, 2.0, 1.0)),
        ({"begin": [0.0, 1.0], "end": [4.0, 3.0], "compute": [4.0, 1.0]}, 1, (3.0, 1.0, 2.0)),
        ({"begin": [0.0, 1.0, 0.5], "end": [4.0, 3.0, 3.25], "compute": [4.0, 2.0, 2.75]}, 2, (3.0, 2.75, 0.25)),
    ],
    ids=["together", "apart", "the nearest"],
)
def test_the_rank_is_that_whose_own_time_is_nearest_to_the_length(clocks, rank, seconds):
    tally = clock(**clocks)
    found = tally.means()
    assert tally.rank() == rank
    assert [found[name] for name in ("iteration_s", "forward_s", "rest_s")] == pytest.approx(list(seconds))


def test_noise_is_that_of_a_turn_a_rank_and_a_place_alone():
    few, many = Jitter(3, 10, spread=0.1, seed=4), Jitter(5, 10, spread=0.1, seed=4)
    backwards = [many(turn, place) for turn in (1, 0) for place in reversed(range(10))][::-1]
    forwards = [few(turn, place) for turn in (0, 1) for place in range(10)]
    assert [list(each[:3]) for each in backwards] == [list(each) for each in forwards]
    assert len(np.unique(forwards)) == 60
    assert list(Jitter(3, 10, spread=0.1, seed=5)(0, 0)) != list(few(0, 0))
    drawn = np.log(np.concatenate([Jitter(64, 100, spread=0.1)(0, place) for place in range(100)]))
    assert (drawn.mean(), drawn.std()) == pytest.approx((0.0, 0.1), abs=5e-3)


def test_all_schedules_and_fusions_meet_the_same_noise():
    """On one rank nothing else is left; and where all ranks end together, the rank is the one that computes most."""
    noisy = {"fusions": ("none", "25MB"), "jitter": "10%", "iterations": 3, "update_s": 1e-9}
    alone = simulated(**noisy, ranks=(1,))
    together = simulated(**noisy, schedules=("sequential", "wfbp"))
    for found in (alone, together):
        computes_s = [each.row["compute_s"] for each in found]
        assert max(computes_s) - min(computes_s) < 1e-12
        assert abs(computes_s[0] - 0.15) > 1e-6


def test_updates_have_no_noise():
    for each in simulated(schedules=("wfbp", "dear"), jitter="20%", update_s=1e-9):
        assert each.row["update_s"] == pytest.approx(1e-9 * sum(bucket.count for bucket in each.prediction.buckets))


def test_jitter_costs_more_the_more_ranks_there_are():
    """A synchronous iteration takes as long as its slowest rank, whatever is drawn."""
    few, many = (
        simulated(schedules=("sequential",), ranks=(ranks,), jitter="20%", network="1tbit,0s")[0].row["iteration_s"]
        for ranks in (2, 64)
    )
    assert 0.15 < few < many


@pytest.mark.parametrize(
    ("flags", "iterations", "said"),
    [
        ([], 1, None),
        (["--jitter", "5%"], 20, "jitter 5%, means of 20 iterations"),
        (["--jitter", "5%", "--iterations", "1"], 1, "jitter 5%, means of 1 iteration"),
        (["--jitter", "0%", "--iterations", "3"], 3, None),
    ],
)
def test_how_many_iterations_count(flags, iterations, said, tmp_path):
    file = tmp_path / "rows.json"
    done = CliRunner().invoke(app, ["simulate", "--ranks", "4", "--json", str(file), *flags])
    assert done.exit_code == 0, done.output
    assert {row["iterations"] for row in json.loads(file.read_text())} == {iterations}
    shown = " ".join(done.output.split())
    assert said is None or said in shown
    assert ("means of" in shown) == (said is not None)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_figure_that_is_not_finite_is_told(value):
    with pytest.raises(ValueError, match=rf"the row has no end: bound_s is {value}; some number that was given is too"):
        check_finite("the row", {"model": "resnet50", "iteration_s": 1.0, "bound_s": value})
