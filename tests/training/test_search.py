"""Searches: they end, try nothing twice, find sizes near the best one, and are the same on any scale of time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.tuning import (
    TRIALS,
    Search,
    cut_by,
    distinct_sizes,
    first_size,
    readable,
    size_text,
)
from tests.training.tuning_page import PROBLEMS, Problem

SIZES = [1 << power for power in range(18, 30)]
START = 1 << 24


def searched(seconds_of, *, sizes=SIZES):
    """A search after its trials."""
    search = Search(sizes, start=START)
    while not search.over:
        fusion = search.ask()
        assert fusion == search.ask(), "it asks for the same until it is told"
        search.tell(fusion, seconds_of(parse_bytes(fusion)))
    return search


def bowl(size):
    """Shortest at 4 MB."""
    return 0.3 + 0.02 * abs(math.log2(size) - 22)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_trials_begin_at_the_start_and_are_different_ones(count):
    sizes = sorted(SIZES, key=lambda size: abs(size - START))[:count]
    search = searched(bowl, sizes=sorted(sizes))
    tried = [trial.fusion for trial in search.trials]
    assert tried[0] == size_text(START)
    assert len(set(tried)) == len(tried) == min(TRIALS, count), "sizes that cut alike are none"
    assert set(tried) <= set(map(size_text, sizes))
    assert search.ask() == search.best.fusion, "when all is over"


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
def test_a_search_is_the_same_again_and_in_any_unit_of_time(scale):
    plain, scaled = searched(bowl), searched(lambda size: scale * bowl(size))
    assert [trial.fusion for trial in plain.trials] == [trial.fusion for trial in scaled.trials]


def test_equal_times_are_no_problem():
    assert searched(lambda size: 0.5).best.fusion == size_text(START)


@given(
    layers=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12),
    low=st.integers(1 << 8, 1 << 20),
    octaves=st.integers(1, 8),
    ranks=st.integers(1, 4),
)
def test_no_two_sizes_cut_alike_and_none_is_left_out(layers, low, octaves, ranks):
    layout = Layout.of([[(number, (count,))] for number, count in enumerate(layers)], itemsize=4, ranks=ranks)
    high = low << octaves
    sizes = distinct_sizes(layout, low, high)
    cuts = [cut_by(layout, size) for size in sizes]
    assert len(set(cuts)) == len(cuts)
    assert sizes == sorted(sizes)
    assert first_size(low, high) in sizes
    assert low <= sizes[0] <= sizes[-1] <= high
    assert {cut_by(layout, size) for size in (low, high)} <= set(cuts)


@given(nbytes=st.integers(1, 1 << 34))
def test_a_size_is_typed_as_it_was(nbytes):
    assert parse_bytes(size_text(nbytes)) == nbytes
    assert abs(readable(nbytes) / nbytes - 1) < 0.006
    assert len(size_text(readable(nbytes))) <= len("1023MB")


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("problem", [*PROBLEMS, Problem("resnet50", "10gbit,50us", "wfbp")], ids=str)
def test_ten_trials_end_within_three_percent_of_the_best(problem, noise):
    rng = np.random.default_rng(5)
    assert problem.missed(problem.search(noise=lambda: rng.normal(1, noise))) < 0.03
