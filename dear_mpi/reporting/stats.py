"""Compute medians and their ratios with distribution-free intervals, Student's t, and multiple tests.

``in_batches`` estimates a ratio of two medians from samples that took turns. Disturbances last and hit both series. So
both are cut at equal places into up to 20 batches, each with a ratio of medians. The scatter of their logarithms gives
the error: Student's t of the trimmed mean, wider if neighbouring batches correlate.

A lasting slow-down biases the ratio of all medians; two modes bias the mean of the batches' ratios. The interval covers
both. It tells equal candidates apart in at most 5 % of runs, except for bursts as long as a run of few turns: 22 % of
runs with 12 turns, 14 % with 30, 3 % with 200 (``tests/reporting/test_turns.py``).

Sources: Schmeiser, Batch size effects in the analysis of simulation output (Operations Research 30, 1982); Tukey and
McLaughlin, Less vulnerable confidence and significance procedures for location (Sankhya A 25, 1963).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dear_mpi.kernels.array import Array

Z = 1.96  # standard errors, half of a 95 % interval
Z_ONE_SIDED = 1.645
FEWEST_ORDERED = 15  # samples that reveal correlated neighbours
FEWEST_SAMPLES = 6  # samples, for a median's 95 % interval
RESAMPLES = 2000


@dataclass(frozen=True)
class Median:
    value: float
    low: float
    high: float

    @property
    def is_noisy(self) -> bool:
        return self.high - self.low > self.value


def median(samples: Sequence[float]) -> Median:
    """Return the median and its distribution-free interval, by ranks (Hoefler and Belli, SC 2015, section 3.1.3).

    With fewer than ``FEWEST_SAMPLES`` samples it spans all of them.

    >>> median([5.0, 1.0, 3.0])
    Median(value=3.0, low=1.0, high=5.0)
    """
    ordered, count = sorted(samples), len(samples)
    low = max(1, math.floor((count - Z * math.sqrt(count)) / 2))
    high = min(count, math.ceil(1 + (count + Z * math.sqrt(count)) / 2))
    return Median(float(np.median(ordered)), ordered[low - 1], ordered[high - 1])


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Median:
    """Return the ratio of two medians of ordered samples, with its 95 % interval.

    This is a bootstrap (fixed seed), on a logarithmic scale wider by the root of ``worth_one``.
    """
    rng = np.random.default_rng(0)
    both = numerators, denominators
    resampled = [np.median(rng.choice(np.asarray(each), (RESAMPLES, len(each))), axis=1) for each in both]
    value = float(np.median(numerators) / np.median(denominators))
    wider = math.sqrt(max(map(worth_one, both)))
    ends = np.quantile(resampled[0] / resampled[1], [0.025, 0.975])
    low, high = map(float, ends if wider == 1 else value * (ends / value) ** wider)
    return Median(value, low, high)


def worth_one(samples: Sequence[float]) -> float:
    """Return how many successive samples equal one independent sample; 1 unless neighbours clearly correlate.

    It is (1 + r) / (1 - r) with neighbours' rank correlation r, corrected for bias in few samples (Kendall, 1954). A
    trend counts as correlation.

    >>> worth_one([1.0, 3.0, 2.0, 1.5, 2.5, 1.2]), worth_one([1.0] * 9)
    (1.0, 1.0)
    """
    count = len(samples)
    ranks = np.unique(np.asarray(samples), return_inverse=True)[1]
    around = ranks - ranks.mean()
    if not around.any():
        return 1.0
    found = float(around[1:] @ around[:-1] / (around @ around))
    return 1.0 if found + 1 / count <= Z_ONE_SIDED / math.sqrt(count) else worth(found, count)


def worth(found: float, count: int) -> float:
    """Return ``worth_one`` for ``count`` samples with this correlation.

    >>> round(worth(0.4, 13), 3), worth(-0.4, 13)
    (4.0, 1.0)
    """
    r = min(max(found + (1 + 4 * found) / count, 0.0), 1 - 1 / count)
    return (1 + r) / (1 - r)


def tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds ``t`` (Abramowitz and Stegun, 1964, 26.7.3 and 26.7.4).

    >>> round(tail(2.228, 10), 4), round(tail(-6.314, 1), 4), tail(math.inf, 3)
    (0.025, 0.95, 0.0)
    """
    angle = math.atan2(t, math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for number in range(freedom // 2):
        total += term
        term *= square * (2 * number + 1 + odd) / (2 * number + 2 + odd)
    inside = math.sin(angle) * total  # probability of -t to t, signed like t
    return max(0.0, (1 - (2 / math.pi * (angle + inside) if odd else inside)) / 2)


@lru_cache
def quantile(above: float, freedom: int) -> float:
    """Invert ``tail``, for a probability of at most 0.5.

    >>> round(quantile(0.025, 10), 3), round(quantile(0.025, 1000), 2)
    (2.228, 1.96)
    """
    low, high = 0.0, 1.0
    while tail(high, freedom) > above:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > above else (low, middle)
    return high


BATCHES = 20  # at most
IN_BATCH = 3  # turns, at least
TRIMMED = 0.2  # batches dropped at each end
LEAST = 1e-12  # avoids the logarithm of 0: a coarse clock's sample
LARGEST = 700.0  # a logarithm: its exponential is finite


@dataclass(frozen=True)
class Batches:
    median: float
    parts: Array

    def over(self, other: "Batches", tests: int = 1) -> Median:
        """Return the ratio of medians, with the 95 % interval.

        ``tests``: of how many ratios the largest lower end is taken, then too high with 2.5 % in all.
        """
        ratios, value = self.parts - other.parts, self.median - other.median
        mean, error, freedom = trimmed(ratios)
        below, above = (quantile(chance, freedom) * error for chance in (0.025 / tests, 0.025))
        ends = value, min(value, mean) - below, max(value, mean) + above
        return Median(*(math.exp(max(-LARGEST, min(end, LARGEST))) for end in ends))


def trimmed(ratios: Array) -> tuple[float, float, int]:
    """Return the trimmed mean, its standard error, and the degrees of freedom.

    The batches' correlation counts as higher by half a standard error: underestimates do more harm.
    """
    count, cut = len(ratios), int(TRIMMED * len(ratios))
    middle = np.sort(ratios)[cut : count - cut]
    held = np.clip(ratios, middle[0], middle[-1])
    around = held - held.mean()
    squares = float(around @ around)
    found = float(around[1:] @ around[:-1]) / squares if squares else 0.0
    alike = worth(found + 0.5 / math.sqrt(count), count) if count > 2 else 1.0
    return float(middle.mean()), math.sqrt(squares * alike / (len(middle) * (len(middle) - 1))), len(middle) - 1


def in_batches(series: Sequence[Sequence[float]]) -> list[Batches] | None:
    """Cut series that took turns into equally many batches; None if one is too short."""
    count = min(BATCHES, min(map(len, series)) // IN_BATCH)
    if count < 2:
        return None
    return [Batches(log_median(each), np.array(list(map(log_median, np.array_split(each, count))))) for each in series]


def log_median(samples: Sequence[float] | Array) -> float:
    return math.log(max(float(np.median(samples)), LEAST))
