"""Medians with intervals, from samples of unknown distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["FEWEST_SAMPLES", "Median", "median", "ratio"]

Z = 1.96  # 95 %
FEWEST_SAMPLES = 6  # samples of which a median has a 95 % interval
RESAMPLES = 2000


@dataclass(frozen=True)
class Median:
    """A median with the borders of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_noisy(self) -> bool:
        """Whether the interval is as wide as what it is of."""
        return self.high - self.low > self.value


def median(samples: Sequence[float]) -> Median:
    """The median and its distribution-free interval, by ranks (Hoefler and Belli, SC 2015, section 3.1.3).

    With fewer than ``FEWEST_SAMPLES`` samples there is no such interval at 95 %; then it spans all of them.

    >>> median([5.0, 1.0, 3.0])
    Median(value=3.0, low=1.0, high=5.0)
    """
    ordered, count = sorted(samples), len(samples)
    low = max(1, math.floor((count - Z * math.sqrt(count)) / 2))
    high = min(count, math.ceil(1 + (count + Z * math.sqrt(count)) / 2))
    return Median(float(np.median(ordered)), ordered[low - 1], ordered[high - 1])


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Median:
    """The ratio of two medians, with its 95 % bootstrap interval (fixed seed)."""
    rng = np.random.default_rng(0)
    resampled = [
        np.median(rng.choice(np.asarray(samples), (RESAMPLES, len(samples))), axis=1)
        for samples in (numerators, denominators)
    ]
    low, high = np.quantile(resampled[0] / resampled[1], [0.025, 0.975])
    return Median(float(np.median(numerators) / np.median(denominators)), float(low), float(high))
