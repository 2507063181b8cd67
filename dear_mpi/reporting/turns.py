"""The ratio of the medians of two that took turns, sample by sample or block by block, with an interval.

What disturbs a machine comes and goes, so neighbouring samples are alike, over more of them than a correlation of
neighbours shows; and it hits both. So both series are cut at the same places, into up to 20 batches of turns; each
batch has its ratio of medians, and the scatter of their logarithms tells how far off the ratio of all is: Student's t
of their trimmed mean, wider where neighbouring batches are still alike. What hits a whole batch of both drops out of
its ratio, and a fifth of the batches may be far off. Nothing is assumed of what one sample has to do with another, so
blocks of samples (as of gloo in `bench`) will do as well.

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
take turns. ``stats.ratio``, a bootstrap of samples, tells equals apart in 21 % of 200 turns with such bursts, and from
noise of both it gets an interval of the whole noise. The median of the ratios of turns would be another quantity than
the ratio of medians: 0.91 and 0.96 where one of both has two modes (ring and a persistent call, 256 KiB, 3000 turns).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.reporting.stats import Median, worth
from dear_mpi.reporting.student import quantile

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
