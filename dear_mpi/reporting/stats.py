"""Medians with intervals, from samples of unknown distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.96  # 95 %
Z_ONE_SIDED = 1.645
FEWEST_ORDERED = 15  # samples in which it is mostly seen that neighbours are alike
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
        """Whether the interval is wider than the median's value."""
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
    """The ratio of two medians, with its 95 % interval.

    Both have their samples in the order in which they were taken. The interval is from a bootstrap (fixed seed) of
    independent samples. Where neighbours are alike it is wider, on a scale of logarithms by the root of ``worth_one``.
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
    """How many successive samples are worth one independent sample; 1 unless neighbours are clearly alike.

    It is (1 + r) / (1 - r), where r is the rank correlation of neighbours, corrected for its bias in few samples
    (Kendall, 1954). Fewer than ``FEWEST_ORDERED`` samples often do not show it. A trend counts as well.

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
    """How many of ``count`` samples are worth an independent one, at least 1, by the correlation found of neighbours.

    >>> round(worth(0.4, 13), 3), worth(-0.4, 13)
    (4.0, 1.0)
    """
    r = min(max(found + (1 + 4 * found) / count, 0.0), 1 - 1 / count)
    return (1 + r) / (1 - r)
