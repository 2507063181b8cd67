"""Intervals of ratios of who takes turns: as often wrong as they say, whatever the noise, and narrow enough."""

import numpy as np
import pytest

from dear_mpi.reporting.stats import in_batches, ratio

TURNS, RUNS, LEAST_RIGHT = 200, 400, 0.93


def over(mine, others):
    own, other = in_batches([mine, others])
    return own.over(other)


def slow(rng, turns, likeness):
    """An AR(1) process: what neighbours have in common lasts about 1 / (1 - likeness) turns."""
    found = rng.standard_normal(turns)
    for turn in range(1, turns):
        found[turn] = likeness * found[turn - 1] + np.sqrt(1 - likeness**2) * found[turn]
    return found


def burst(rng, turns, lasting=20):
    """Now and then a second load of the machine, half of the time in all."""
    return (np.cumsum(rng.random(turns) < 1 / lasting) + (rng.random() < 0.5)) % 2


def alone(times):
    """Two of the same kind, whose noise is their own."""
    return lambda rng, turns: [times(rng, turns) for _ in range(2)]


def both(times):
    """Two of the same kind, whose noise is that of the machine, and a little of their own."""

    def pair(rng, turns):
        common = times(rng, turns)
        return [common * np.exp(0.03 * rng.standard_normal(turns)) for _ in range(2)]

    return pair


def disturbed(rng, turns):
    """A tenth of the turns in a row, five times as slow."""
    begin = rng.integers(0, turns - turns // 10 + 1)
    hit = (np.arange(turns) >= begin) & (np.arange(turns) < begin + turns // 10)
    return (1 + 0.03 * rng.standard_normal(turns)) * np.where(hit, 5.0, 1.0)


NOISE = {
    "normal": alone(lambda rng, turns: 1 + 0.05 * rng.standard_normal(turns)),
    "heavy tails": alone(lambda rng, turns: 1 + 0.05 * rng.pareto(1.2, turns)),
    "wide": alone(lambda rng, turns: np.exp(0.5 * rng.standard_normal(turns))),
    "two modes": alone(lambda rng, turns: np.exp(0.3 * (rng.random(turns) < 0.4) + 0.02 * rng.standard_normal(turns))),
    "modes as often": alone(lambda rng, turns: np.exp(0.3 * (rng.random(turns) < 0.5) + 0.02 * rng.random(turns))),
    "a coarse clock": alone(lambda rng, turns: np.round(10 + rng.exponential(1.0, turns))),
    "neighbours alike": alone(lambda rng, turns: np.exp(0.05 * slow(rng, turns, 0.5))),
    "slow": alone(lambda rng, turns: np.exp(0.05 * slow(rng, turns, 0.9))),
    "slow, of both": both(lambda rng, turns: np.exp(0.2 * slow(rng, turns, 0.97))),
    "bursts": alone(lambda rng, turns: np.exp(0.3 * burst(rng, turns) + 0.03 * rng.standard_normal(turns))),
    "disturbed once": alone(disturbed),
    "bursts, of both": both(lambda rng, turns: 1 + burst(rng, turns) * rng.exponential(0.4, turns)),
    "a drift, of both": both(lambda rng, turns: np.linspace(1.0, 1.4, turns)),
    "a step, of both": both(lambda rng, turns: 1 + 0.3 * (np.arange(turns) > turns * rng.random())),
}


def apart(noise, turns=TURNS, runs=RUNS, factor=1.0):
    """The share of runs in which the interval of equals, of which one is so many times as slow, leaves the factor out;
    and that in which it leaves 1 out."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(runs):
        one, other = noise(rng, turns)
        found.append(over(factor * one, other))
    return [np.mean([not each.low <= truth <= each.high for each in found]) for truth in (factor, 1.0)]


@pytest.mark.parametrize("name", NOISE)
def test_equals_are_seldom_told_apart(name):
    assert apart(NOISE[name])[0] <= 1 - LEAST_RIGHT


@pytest.mark.parametrize(
    "name", ["normal", "heavy tails", "disturbed once", "a drift, of both", "a step, of both", "slow, of both"]
)
def test_three_percent_are_told_apart(name):
    """By 1000 turns, where what a turn has of its own is 3 to 5 %."""
    assert apart(NOISE[name], turns=1000, runs=100, factor=1.03)[1] >= 0.95


def test_the_interval_has_the_ratio_of_medians():
    rng = np.random.default_rng(3)
    for turns in (6, 11, 30, 31, 200):
        one, other = rng.pareto(1.0, turns) + 1, rng.pareto(2.0, turns) + 1
        found = over(one, other)
        assert found.value == pytest.approx(np.median(one) / np.median(other))
        assert found.low <= found.value <= found.high


def test_the_interval_of_the_inverse_is_the_inverse():
    rng = np.random.default_rng(4)
    one, other = np.exp(rng.standard_normal((2, 50)))
    found, inverse = over(one, other), over(other, one)
    assert (inverse.value, inverse.low, inverse.high) == pytest.approx((1 / found.value, 1 / found.high, 1 / found.low))


def test_who_lost_samples_is_compared_as_well():
    rng = np.random.default_rng(5)
    one, other = np.exp(0.01 * rng.standard_normal((2, 200)))
    assert over(2 * one[:150], other).value == pytest.approx(2.0, rel=0.01)
    assert in_batches([one, other[:5]]) is None


def test_zeros_of_a_coarse_clock_have_a_ratio():
    found = over([0.0] * 12, [1e-6] * 12)
    assert 0 < found.low <= found.high < 1


@pytest.mark.parametrize("tests", [2, 10])
def test_several_lower_ends_go_lower(tests):
    rng = np.random.default_rng(6)
    own, other = in_batches(np.exp(0.1 * rng.standard_normal((2, 200))))
    one, several = own.over(other), own.over(other, tests)
    assert several.low < one.low
    assert several.high == one.high


# Intervals of ratios: as often wrong as they say, where samples are independent and where neighbours are alike.

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
