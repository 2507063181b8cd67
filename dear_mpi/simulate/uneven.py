"""Model rank speeds: all equal, one slower, or each slightly different every time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dear_mpi.reporting.units import parse_share, parse_straggler

MOST_JITTER = 1.0  # a layer then takes at least e times as long in one of six iterations


def straggling(text: str | None, ranks: int) -> Callable[[Any], Any]:
    """Return a function from nominal seconds, of all ranks or of each, to actual seconds with a straggler.

    Args:
        text: see ``parse_straggler``.

    >>> straggling(None, 2)(1.0), straggling("1:1.5", 2)(2.0)
    (1.0, array([2., 3.]))
    """
    factors = np.array(parse_straggler(text, ranks))
    return lambda seconds: seconds if text is None else seconds * factors


class Jitter:
    """Draw layer noise: a time factor for each layer, rank and pass, new every time.

    It depends only on the seed, the turn, the rank and the place (``VirtualUse``). All schedules, fusions and networks
    therefore get the same noise, in any order of queries: it does not affect their differences. The first of many ranks
    have the same noise as few ranks. Updates, and the rest of an iteration, have none.

    Args:
        places: per turn: twice the number of layer calls.
        spread: the standard deviation of the logarithm of a factor, whose median is 1.

    >>> few, many = Jitter(2, 6, spread=0.1, seed=7), Jitter(3, 6, spread=0.1, seed=7)
    >>> later = many(1, 5)
    >>> bool((many(0, 4)[:2] == few(0, 4)).all()), bool((many(1, 5) == later).all())
    (True, True)
    """

    def __init__(self, ranks: int, places: int, *, spread: float, seed: int = 0) -> None:
        self.ranks, self.places, self.spread, self.seed = ranks, places, spread, seed
        self.turn, self.factors = -1, np.ones(0)

    def __call__(self, turn: int, place: int) -> Any:
        if not self.spread:
            return 1.0
        if turn != self.turn:
            drawn = np.random.default_rng([self.seed, turn]).standard_normal((self.ranks, self.places))
            self.turn, self.factors = turn, np.exp(self.spread * np.ascontiguousarray(drawn.T))
        return self.factors[place]


def parse_jitter(text: str) -> float:
    """Parse a share, as ``5%`` or ``0.05``. Raises ValueError.

    >>> parse_jitter("5%"), parse_jitter("0.05")
    (0.05, 0.05)
    """
    return parse_share("jitter", text, MOST_JITTER)
