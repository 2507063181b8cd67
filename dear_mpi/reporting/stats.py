"""Medians and their ratios with intervals, from samples of unknown distribution; Student's t; many tests at once.

``in_batches`` is for the ratio of the medians of two that took turns, sample by sample or block by block. What disturbs
a machine comes and goes, so neighbouring samples are alike, over more of them than a correlation of neighbours shows;
and it hits both. So both series are cut at the same places, into up to 20 batches of turns; each batch has its ratio of
medians, and the scatter of their logarithms tells how far off the ratio of all is: Student's t of their trimmed mean,
wider where neighbouring batches are still alike. What hits a whole batch of both drops out of its ratio, and a fifth of
the batches may be far off. Nothing is assumed of what one sample has to do with another, so blocks of samples (of a job
under another MPI) will do as well.

Sources: batch means, Schmeiser, Batch size effects in the analysis of simulation output (Operations Research 30, 1982),
who finds 10 to 30 batches to be enough; trimmed means, Tukey and McLaughlin, Less vulnerable confidence and
significance procedures for location based on a single sample (Sankhya A 25, 1963).

The ratio of all medians and the mean of those of batches differ where the machine becomes slower for good in the
middle of a run (which spoils the former) or where times have two modes (the latter). The interval reaches from below
the lesser to above the greater, so it is a little wide.

How often equals were told apart, in % of 2000 runs (1000 of 1000 turns), where 5 are right;
``tests/reporting/test_turns.py`` has these kinds of noise:

    turns                                          12    30   200  1000
    independent: normal, heavy tails, wide        1.6   2.1   1.9   1.8  at most
    independent: two modes, a coarse clock        1.4   0.7   3.1   1.9  at most
    neighbours alike, r = 0.5                     3.6   4.0   2.2   1.9
    slow, r = 0.9                                17.3  11.0   3.8   2.8
    bursts of 20 turns, half of the time         22.4  13.7   2.7   2.4
    a tenth of the turns five times as slow       1.8   0.6   0.3   0.1
    slow, bursts, a drift, a step: of both        1.5   2.0   1.7   1.5  at most

So few samples do not show that noise lasts as long as they do, if it hits one alone, which it hardly does where both
take turns. ``ratio``, a bootstrap of samples, tells equals apart in 21 % of 200 turns with such bursts, and from
noise of both it gets an interval of the whole noise. The median of the ratios of turns would be another quantity than
the ratio of medians: 0.91 and 0.96 where one of both has two modes (ring and a persistent call, 256 KiB, 3000 turns).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dear_mpi.kernels.array import Array

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


def tail(t: float, freedom: int) -> float:
    """The probability of a value above ``t``, with so many degrees of freedom, at least 1.

    A finite series: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.

    >>> round(tail(2.228, 10), 4), round(tail(-6.314, 1), 4), tail(math.inf, 3)
    (0.025, 0.95, 0.0)
    """
    angle = math.atan2(t, math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for number in range(freedom // 2):
        total += term
        term *= square * (2 * number + 1 + odd) / (2 * number + 2 + odd)
    inside = math.sin(angle) * total  # the probability of -t to t, negative for a negative t
    return max(0.0, (1 - (2 / math.pi * (angle + inside) if odd else inside)) / 2)


@lru_cache
def quantile(above: float, freedom: int) -> float:
    """The ``t`` above which a value lies with this probability, of at most 0.5.

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


def holm(chances: Sequence[float]) -> list[float]:
    """Adjusted p-values: of tests whose value is at most 5 %, with 95 % none says what is not so, however they depend
    on each other. Source: Holm, A simple sequentially rejective multiple test procedure (1979).

    >>> holm([0.04, 0.01, 0.5])
    [0.08, 0.03, 0.5]
    """
    adjusted, worst = [1.0] * len(chances), 0.0
    for passed, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        worst = max(worst, (len(chances) - passed) * chances[place])
        adjusted[place] = min(1.0, worst)
    return adjusted


BATCHES = 20  # at most
IN_BATCH = 3  # turns at least
TRIMMED = 0.2  # of the batches at each end
LEAST = 1e-12  # a sample may be 0 where a clock is coarse, and has a logarithm all the same
MOST = 700.0  # a logarithm whose power is a number


@dataclass(frozen=True)
class Batches:
    """Logarithms of the median of all samples of one, and of those of its batches, in their order."""

    median: float
    parts: Array

    def over(self, other: "Batches", tests: int = 1) -> Median:
        """Its median over the other's, who had as many turns, with the 95 % interval.

        ``tests``: of how many such ratios the least lower end counts, so that it is too high with 2.5 %, not each.
        """
        ratios, value = self.parts - other.parts, self.median - other.median
        mean, error, freedom = trimmed(ratios)
        below, above = (quantile(chance, freedom) * error for chance in (0.025 / tests, 0.025))
        ends = value, min(value, mean) - below, max(value, mean) + above
        return Median(*(math.exp(max(-MOST, min(end, MOST))) for end in ends))


def trimmed(ratios: Array) -> tuple[float, float, int]:
    """The mean of those in the middle, its standard error, and how many degrees of freedom tell it.

    Few batches tell badly how alike neighbours are, and to be off to one side does more harm: so they count as more
    alike than they seem, by half a standard error.
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
    """Those that took turns, each in as many batches; None if any has too few samples."""
    count = min(BATCHES, min(map(len, series)) // IN_BATCH)
    if count < 2:
        return None
    return [Batches(log_median(each), np.array(list(map(log_median, np.array_split(each, count))))) for each in series]


def log_median(samples: Sequence[float] | Array) -> float:
    return math.log(max(float(np.median(samples)), LEAST))
