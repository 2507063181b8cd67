"""What few bits lose is bounded, selections are the same on all ranks, and noise is of its share.

tests/training/test_wires.py trains all wires.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.contrib.wires.few_bits import Eighths, Halves
from dear_mpi.contrib.wires.noise import Noise
from dear_mpi.contrib.wires.selections import RandomBlocks, RandomK, TopK
from tests.training.test_wires import DRAWN, check_bound, check_sums, decoded, run


@pytest.mark.parametrize(("wire", "most"), [(Halves(), 1 / 14), (Eighths(), 1 / 16)])
@given(**DRAWN)
def test_what_a_block_loses_is_bounded(wire, most, kind, count, seed):
    check_bound(wire, most, kind, count, seed)


@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_the_error_of_a_sum_does_not_grow_with_ranks(ranks):
    check_sums(Halves(), ranks, 0.2)


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


NOISY = ({}, {"wire": "noise:30%"}, {"wire": "noise:0.01%"})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_noise_is_normal_and_of_its_share(dtype):
    x, filled = np.random.default_rng(1).standard_normal(20_000).astype(dtype), np.ones(20_000, bool)
    found = [x.copy() for _ in range(3)]
    for one, draw in zip(found, [(7, 0), (7, 0), (7, 1)], strict=True):
        Noise(0.1).add(one, filled, draw)
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    noise = (found[0].astype(np.float64) - x) / np.sqrt(np.mean(x.astype(np.float64) ** 2))
    assert noise.std() == pytest.approx(0.1, rel=0.03)
    assert abs(noise.mean()) < 0.003
    assert np.mean(abs(noise) < 0.1) == pytest.approx(0.683, abs=0.02)
    x[5] = np.inf
    with np.errstate(all="ignore"):
        Noise(0.1).add(x, filled, (0, 0))
    assert not np.isfinite(x).any()


def test_padding_stays_silent_and_does_not_count():
    x, filled = np.zeros(4096), np.arange(4096) < 1024
    x[:1024] = 2.0
    Noise(0.5).add(x, filled, (0, 0))
    assert not x[1024:].any()
    assert (x[:1024] - 2.0).std() == pytest.approx(1.0, rel=0.1)


def test_noise_is_on_the_sum_and_on_all_ranks_alike():
    """Against the same without noise; with shards and with a limit on the norm, too."""
    plain, loud, small = (run({"optimizer": "sgd", "lr": 0.1} | more)["loss"] for more in NOISY)
    assert loud[0] == plain[0]
    assert loud[1] != plain[1]
    assert abs(small[-1] - plain[-1]) < abs(loud[-1] - plain[-1])
    sharded = {"wire": "noise:10%", "update": "sharded"}
    assert len({run(sharded | {"schedule": name})["params_sha256"] for name in ("zero", "dear")}) == 1
    assert run(sharded)["params_sha256"] == run({"wire": "noise:10%"})["params_sha256"]
    assert run(sharded | {"clip": 0.5})["params_sha256"] != run(sharded)["params_sha256"]
