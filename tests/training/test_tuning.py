"""Fusion that is tuned while a session trains: on threads; tests/mpi/test_training.py has the same under mpirun."""

import json
import sys

import numpy as np
import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_bytes, parse_link
from dear_mpi.training import Adam, Session
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.events.profile import read_profile
from dear_mpi.training.fabric.plan_cost import plan_s
from dear_mpi.training.fusion import borders
from dear_mpi.training.fusion.tuning import FILL, TIMED, candidates
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.training_checks import on_all, settings
from tests.tuning_checks import LAYERS, RANGE, Clock, Loss, Spends, check_trials, tuned

TRIAL = FILL + TIMED  # iterations


def on_threads(size, **choices):
    return on_all(lambda transport: tuned(transport, transport.rank, size, **choices), size)


@pytest.mark.parametrize(
    ("size", "choices"), [(1, {}), (3, {}), *((2, {"schedule": each}) for each in ("sequential", "dear-eager"))]
)
def test_the_slowest_rank_counts_and_all_cut_alike(size, choices):
    check_trials(on_threads(size, iterations=90, **choices), size)


@pytest.mark.parametrize("options", [{}, {"update": "sharded", "accumulate": 2, "clip": 1.0}], ids=str)
@pytest.mark.parametrize("fusion", [f"bo:{RANGE}", "auto"])
def test_bits_do_not_depend_on_cuts_with_ordered(fusion, options):
    """DeAR trains on while it tunes: with sums in the order of ranks, to the bits of a run that never cuts."""
    options |= {"iterations": 10 * TRIAL + 5, "algorithm": "ordered", "optimizer": Adam(1e-3)}
    tuned_one = on_threads(3, fusion=fusion, **options)
    plain = on_threads(3, fusion="none", **options)
    assert tuned_one[0][3] == plain[0][3]
    assert tuned_one[0][2] != plain[0][2]


def test_a_session_that_is_cut_by_hand_is_tuned_no_more():
    def body(transport):
        clock = Clock()
        loss = Loss(clock, lambda buckets: 1.0)
        layers = [Spends(clock, number, 1e-3) for number in range(LAYERS)]
        with Session(layers, loss, transport, fusion=f"bo:{RANGE}") as session:
            loss.session = session
            session.group.streams.compute.mark = lambda: clock.now
            for iteration in range(4 * TRIAL):
                session.step(np.zeros((2, 1)), np.zeros((2, 1)))
                if iteration == TRIAL + 1:
                    session.cut("none")
            tuning = session.decisions.tuning
            return len(tuning.trials), session.decisions.fusion, tuning.over

    assert on_all(body, 2) == [(1, "none", True)] * 2


def test_auto_takes_the_fewest_buckets_that_are_as_good_as_the_best_prediction(monkeypatch):
    """The layers take long, the network is slow: small buckets win over one of 25 MB, on all ranks alike."""
    for user in ("fabric.plan_cost", "events.profiler"):  # the tests' clock knows no wire
        monkeypatch.setattr(f"dear_mpi.training.{user}.plan_s", lambda fabric, plan, timed=False: plan_s(fabric, plan))
    link = parse_link("1gbit,200us")

    def body(world):
        how = {"layer_s": 1e-4, "seconds": lambda buckets: 0.0}
        return tuned(world, world.rank, world.size, iterations=10, fusion="auto", **how)

    trials, fusion, buckets, _, over = run_world(body, threads=2, link=link)
    assert over
    assert trials[0][0] == "25MB"
    assert any(tried.startswith("cut:") for tried, _ in trials)
    best_s, predicted = min(seconds for _, seconds in trials), dict(trials)
    assert best_s <= predicted[fusion] <= 1.02 * best_s < predicted["25MB"]
    assert 1 < buckets < LAYERS


WRONG = {
    "bo:1KB..2KB": "fusion 'bo:1KB..2KB': all sizes from 1KB to 2KB cut this model into the same 16 buckets",
    "bo:2MB..1GB": "fusion 'bo:2MB..1GB': all sizes from 2MB to 1GB cut this model into the same 1 bucket; its",
    "bo:rndom": "fusion 'bo:rndom': ",
    "bo:1..2": "fusion 'bo:1..2': size '1' has no unit",
    "bo:2MB..1MB": "fusion 'bo:2MB..1MB': the range must go up from at least 1 B; write it like bo or bo:1MB..64MB",
    "auto:5": "fusion 'auto:5': auto takes nothing after a colon",
}


@pytest.mark.parametrize("fusion", WRONG)
def test_what_cannot_be_tuned_is_refused_on_all_ranks(fusion):
    answers = on_threads(3, iterations=1, fusion=fusion)
    assert answers == answers[:1] * 3
    assert f"session: {WRONG[fusion]}" in answers[0]


def test_without_the_package_all_ranks_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bayes_opt", None)  # an import of it fails
    answers = on_threads(3, iterations=1)
    assert answers == answers[:1] * 3
    assert "needs bayesian-optimization: pip install bayesian-optimization (our extra 'tune')" in answers[0]


SMALL = {"fusion": "bo:1KB..1MB", "algorithm": "ordered", "iterations": 60}


def test_train_reports_its_trials_and_ends_with_the_same_bits():
    def trained(**choices):
        return run_world(lambda world: train(Config.of(settings(**choices)), world), threads=2)

    report = trained(**SMALL)
    tried = report["tuned"]
    best = min(tried, key=lambda each: each["seconds"])["fusion"]
    assert (report["tuner"], report["fusion"]) == (SMALL["fusion"], best)
    assert len(report["iteration_s"]) == len(report["loss"]) == 60
    assert report["uncounted"] == len(tried) * TRIAL + 2
    frozen = trained(**SMALL | {"fusion": report["fusion"]})
    assert frozen["buckets"] == report["buckets"]
    assert (frozen["tuner"], frozen["tuned"], frozen["uncounted"]) == (None, [], 2)
    assert frozen["params_sha256"] == report["params_sha256"]
    assert frozen["loss"] == report["loss"]


def test_a_comparison_tunes_each_schedule_by_itself():
    config = Config.of(settings(iterations=3))
    fusions = ("none", SMALL["fusion"], "auto")
    rows = run_world(lambda world: Comparison(config, world, ["wfbp", "dear"], fusions=fusions).run(), threads=2)
    assert [row["asked_fusion"] for row in rows] == [fusion for fusion in fusions for _ in range(2)]
    found = [row["fusion"] for row in rows if row["asked_fusion"] != "none"]
    assert all(parse_bytes(fusion.removeprefix("cut:")) > 0 for fusion in found), found


def test_the_command_says_what_repeats_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file, profile = tmp_path / "run.json", tmp_path / "profile.json"
    flags = ["--fusion", SMALL["fusion"], "--iterations", "60", "--json", file, "--profile", profile]
    done = succeed("train", "--threads", 2, *flags)
    report = json.loads(file.read_text())
    assert f"trials of {SMALL['fusion']}; --fusion {report['fusion']} repeats it" in done.output
    assert read_profile(profile).update_s_per_element > 0, "of the buckets that it ends with"


def test_too_few_iterations_are_one_line():
    done = invoke("train", "--threads", 2, "--fusion", "auto", "--iterations", 6)
    assert_one_line(done, "iterations must be more than 6, not 6: the first 6 decide a fusion by trials")


def test_auto_looks_at_no_more_buckets_of_a_huge_line_than_it_has_time_for():
    layout = Layout.of([[(number, (75_000, 10_000))] for number in range(10)], itemsize=4, ranks=4)
    found = candidates(layout)
    assert "cut:32MB" in found
    assert max(len(borders(policy, layout)) for policy in found) <= 10_000
