"""Noise on sums: normal, of its share, and the same on all ranks."""

import numpy as np
import pytest

from dear_mpi.contrib.wires.noise import Noise
from tests.training.test_wires import run

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
