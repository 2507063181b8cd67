"""Selections of elements: the largest ones, or the same random ones on all ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.contrib.wires.selections import RandomBlocks, RandomK, TopK
from tests.training.test_wires import decoded


@given(seed=st.integers(0, 99), count=st.integers(1, 300))
def test_the_largest_travel_and_nan_is_one_of_them(seed, count):
    wire, x = TopK(0.1), np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    found = decoded(wire, x)
    kept = found != 0
    assert kept.sum() == wire.kept(count)
    assert np.array_equal(found[kept], x[kept])
    assert abs(x[kept]).min() >= abs(x[~kept]).max(initial=0)
    x[count // 2] = np.nan
    assert np.isnan(decoded(wire, x)[count // 2])


@pytest.mark.parametrize(("wire", "step"), [(RandomK(0.1), 1), (RandomBlocks(0.1), 32)])
def test_a_selection_is_the_same_for_a_draw_and_covers_all_in_time(wire, step):
    count, seen = 640, np.zeros(640, int)
    for update in range(200):
        places = wire.places(count, (7, update))
        assert np.array_equal(places, wire.places(count, (7, update)))
        assert places.size == wire.kept(count) == 64
        assert (np.diff(places) > 0).all()
        seen[places] += 1
    assert seen.min() > 0
    assert not np.array_equal(wire.places(count, (7, 0)), wire.places(count, (7, 1)))
    assert not np.array_equal(wire.places(count, (7, 0)), wire.places(count, (8, 0)))
