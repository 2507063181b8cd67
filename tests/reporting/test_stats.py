"""Intervals of ratios: as often wrong as they say, where samples are independent and where neighbours are alike."""

import numpy as np
import pytest

from dear_mpi.reporting.stats import ratio

PAIRS, SAMPLES, SPREAD = 400, 30, 0.02


def series(rng, likeness, length=SAMPLES):
    """Seconds of iterations; an AR(1) process around one second."""
    noise = rng.standard_normal(length)
    for number in range(1, length):
        noise[number] = likeness * noise[number - 1] + np.sqrt(1 - likeness**2) * noise[number]
    return 1 + SPREAD * noise


def told_apart(likeness, factor, pairs=PAIRS):
    """The share of pairs of series whose interval does not include 1, where one is so many times as fast."""
    rng = np.random.default_rng(5)
    found = [ratio(factor * series(rng, likeness), series(rng, likeness)) for _ in range(pairs)]
    return np.mean([not each.low <= 1 <= each.high for each in found])


@pytest.mark.parametrize(("likeness", "least", "most"), [(0.0, 0.025, 0.06), (0.5, 0.0, 0.06), (0.8, 0.0, 0.07)])
def test_equal_samples_are_seldom_told_apart(likeness, least, most):
    """Where neighbours are alike (0.8), 45 % were."""
    assert least <= told_apart(likeness, 1.0) <= most


@pytest.mark.parametrize(("likeness", "factor"), [(0.0, 1.03), (0.5, 1.1), (0.8, 1.25)])
def test_what_differs_clearly_is_told_apart(likeness, factor):
    assert told_apart(likeness, factor, pairs=100) >= 0.97


def test_a_trend_is_no_difference():
    rising = np.linspace(0.9, 1.1, SAMPLES)
    found = ratio(rising, rising[: SAMPLES // 2])
    assert found.low < 1 < found.high
