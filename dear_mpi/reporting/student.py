"""Student's t distribution, and what many tests at once may say."""

import math
from collections.abc import Sequence
from functools import lru_cache


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
