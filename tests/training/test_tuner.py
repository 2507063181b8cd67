"""Tuners: they end, try nothing twice, find sizes that are near the best one, and are the same on any scale of time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.tuning import TUNERS
from dear_mpi.training.tuning.asked import Asked
from dear_mpi.training.tuning.sizes import cut_by, distinct_sizes, readable, size_text
from tests.training.tuning_page import PROBLEMS, Problem

SIZES = [1 << power for power in range(20, 29)]
START = 1 << 24


def searched(kind, seconds_of, *, sizes=SIZES, start=START, **options):
    """A tuner behind its trials."""
    tuner = TUNERS[kind](sizes, start=start, **options)
    while not tuner.over:
        size = tuner.suggest()
        assert size == tuner.suggest(), "it asks for the same until it is told"
        tuner.tell(size, seconds_of(size))
    return tuner


def bowl(size):
    """Shortest at 4 MB."""
    return 0.3 + 0.02 * abs(math.log2(size) - 22)


@pytest.mark.parametrize("kind", TUNERS)
@pytest.mark.parametrize("most", [1, 2, 5, 10])
def test_trials_begin_at_the_start_and_are_different_ones(kind, most):
    tuner = searched(kind, bowl, most=most, seed=3)
    tried = [trial.nbytes for trial in tuner.trials]
    assert tried[0] == START
    assert len(set(tried)) == len(tried) == min(most, len(SIZES)), "sizes that cut alike are none"
    assert set(tried) <= set(SIZES)
    assert tuner.best == min(tuner.trials, key=lambda trial: trial.seconds)
    assert tuner.suggest() == tuner.best.nbytes, "when all is over"


@pytest.mark.parametrize("kind", TUNERS)
def test_a_search_can_be_repeated_and_its_seed_matters_where_it_is_random(kind):
    first, again, other = (searched(kind, bowl, most=5, seed=seed).trials for seed in (1, 1, 2))
    assert first == again
    assert (first != other) or kind != "random"


@pytest.mark.parametrize("kind", TUNERS)
@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_a_search_is_the_same_in_any_unit_of_time(kind, scale):
    plain, scaled = searched(kind, bowl, most=6), searched(kind, lambda size: scale * bowl(size), most=6)
    assert [trial.nbytes for trial in plain.trials] == [trial.nbytes for trial in scaled.trials]


@pytest.mark.parametrize("kind", TUNERS)
def test_what_is_told_twice_counts_as_its_mean(kind):
    tuner = TUNERS[kind](SIZES, start=START)
    for seconds in (1.0, 3.0):
        tuner.tell(START, seconds)
    tuner.tell(SIZES[0], 1.5)
    assert tuner.best.nbytes == SIZES[0]
    tuner.tell(tuner.suggest(), 1.25)
    assert tuner.best.seconds == 1.25


@pytest.mark.parametrize("kind", TUNERS)
def test_equal_times_are_no_problem(kind):
    assert searched(kind, lambda size: 0.5).best.nbytes == START


@pytest.mark.parametrize("kind", TUNERS)
@pytest.mark.parametrize(
    ("nbytes", "seconds", "said"),
    [
        (7, 1.0, "nbytes must be one of the 9 sizes of the tuner, not 7"),
        (START, 0.0, "seconds must be above zero, not 0.0"),
        (START, math.nan, "seconds must be above zero, not nan"),
    ],
)
def test_what_is_no_trial_is_refused(kind, nbytes, seconds, said):
    with pytest.raises(ValueError, match=said):
        TUNERS[kind](SIZES, start=START).tell(nbytes, seconds)


def test_a_start_must_be_a_size_and_a_best_needs_a_trial():
    with pytest.raises(ValueError, match="start must be one of the 9 sizes, not 7"):
        TUNERS["grid"](SIZES, start=7)
    with pytest.raises(ValueError, match="a tuner without a trial has no best one"):
        _ = TUNERS["grid"](SIZES, start=START).best


@given(
    layers=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12),
    low=st.integers(1 << 8, 1 << 20),
    octaves=st.integers(1, 8),
    ranks=st.integers(1, 4),
)
def test_no_two_sizes_cut_alike_and_none_is_left_out(layers, low, octaves, ranks):
    layout = Layout.of([[(number, (count,))] for number, count in enumerate(layers)], itemsize=4, ranks=ranks)
    asked = Asked(low=low, high=low << octaves)
    sizes = distinct_sizes(lambda size: cut_by(layout, size), asked.low, asked.high, start=asked.start)
    cuts = [cut_by(layout, size) for size in sizes]
    assert len(set(cuts)) == len(cuts)
    assert sizes == sorted(sizes)
    assert asked.start in sizes
    assert asked.low <= sizes[0] <= sizes[-1] <= asked.high
    assert {cut_by(layout, size) for size in (asked.low, asked.high)} <= set(cuts)


@given(nbytes=st.integers(1, 1 << 34))
def test_a_size_is_typed_as_it_was(nbytes):
    assert parse_bytes(size_text(nbytes)) == nbytes
    assert abs(readable(nbytes) / nbytes - 1) < 0.006
    assert len(size_text(readable(nbytes))) <= len("1023MB")


@pytest.mark.parametrize("problem", [*PROBLEMS, Problem("resnet50", "10gbit,50us", "wfbp")], ids=str)
def test_ten_trials_end_within_three_percent_of_the_best(problem):
    missed = {seed: problem.missed(problem.search("bayesian", seed)) for seed in range(2)}
    assert max(missed.values()) < 0.03, missed


@pytest.mark.parametrize("problem", PROBLEMS[:2], ids=str)
def test_noise_of_a_percent_costs_little_more(problem):
    rng = np.random.default_rng(5)
    missed = [problem.missed(problem.search("bayesian", noise=lambda: rng.normal(1, 0.01))) for _ in range(3)]
    assert max(missed) < 0.03, missed
