"""A function on 0..1 that is slow to evaluate and often straight: then five places say what it is anywhere.

Where it is not straight, it is evaluated at each place that is asked for. A value in between does not follow from the
known ones: where messages share links, a small change can make another message wait, and a price jumps.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dear_mpi.kernels.array import Array

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Curve:
    """The function, interpolated to ``within`` where it is straight, and evaluated where it is not.

    A convex function that is off its chord by e in the middle is nowhere off by more than 2 e. All functions are tested
    in the middle and at two more places, as they need not be convex.

    Args:
        function: from a place to a value above zero; it is called from several threads at once.
        within: how far the values in between may be off the line between the ends, as a share of them.

    Attributes:
        known: the values that the function has given.

    >>> curve = Curve(lambda place: 1 + 2 * place, within=1e-3)
    >>> curve([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8]), len(curve.known)
    (array([1.2, 1.4, 1.6, 1.8, 2.2, 2.4, 2.6]), 5)
    """

    def __init__(self, function: Callable[[float], float], *, within: float) -> None:
        self.function, self.within = function, within
        self.known: dict[float, float] = {}

    def __call__(self, places: Iterable[float]) -> Array:
        """The values at these places from 0 to 1."""
        asked = list(places)
        few = len(self.known.keys() | set(asked)) < len(PLACES)
        if few or not self.is_straight():
            return np.array(self.values(asked))
        return np.interp(asked, PLACES, self.values(PLACES))

    def is_straight(self) -> bool:
        """Whether all is on a line; asks the function at five places, once."""
        values = np.array(self.values(PLACES))
        line = np.interp(PLACES, (0, 1), values[[0, -1]])
        return bool((np.abs(line / values - 1) <= self.within).all())

    def values(self, places: Iterable[float]) -> list[float]:
        """The function's own values, several at a time."""
        asked = list(places)
        new = sorted(set(asked) - set(self.known))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known.update(zip(new, pool.map(self.function, new), strict=True))
        return [self.known[place] for place in asked]
