"""What all tuners have in common: they are asked for a size, told what an iteration took with it, and asked again.

    while not tuner.over:
        nbytes = tuner.suggest()
        tuner.tell(nbytes, seconds_of_an_iteration(nbytes))
    nbytes = tuner.best.nbytes

A tuner knows neither models nor networks. It never suggests a size again that was tried, and what it suggests follows
from its seed and its trials alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

TRIALS = 10  # as in DeAR's published code


@dataclass(frozen=True)
class Trial:
    """A size of buckets in bytes, and the seconds that an iteration took with it."""

    nbytes: int
    seconds: float


class Tuner(ABC):
    """Looks for the size with the shortest iteration.

    Args:
        sizes: those that may be tried, in bytes, ascending; see ``distinct_sizes``.
        start: the one that is tried first.
        most: how many trials there are, if there are so many sizes.
        seed: fixes what is drawn.

    Attributes:
        trials: those so far, in order.

    Raises:
        ValueError: there are no sizes, or ``start`` is none of them.
    """

    def __init__(self, sizes: Sequence[int], *, start: int, most: int = TRIALS, seed: int = 0) -> None:
        self.sizes, self.start, self.seed = tuple(sizes), start, seed
        if start not in self.sizes:
            raise ValueError(f"start must be one of the {len(self.sizes)} sizes, not {start}")
        self.most = min(most, len(self.sizes))
        self.trials: list[Trial] = []

    def suggest(self) -> int:
        """The size to try next; when all is over, the best one."""
        if not self.trials:
            return self.start
        return self.best.nbytes if self.over else self.propose(self.untried)

    @abstractmethod
    def propose(self, untried: Sequence[int]) -> int:
        """One of the sizes that were not tried, of which there is one at least; there is a trial at least, too."""

    def tell(self, nbytes: int, seconds: float) -> None:
        """What an iteration took; a size may be told several times.

        Raises:
            ValueError: the size is none of ``sizes``, or the seconds are no time.
        """
        if nbytes not in self.sizes:
            raise ValueError(f"nbytes must be one of the {len(self.sizes)} sizes of the tuner, not {nbytes}")
        if not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be above zero, not {seconds}")
        self.trials.append(Trial(nbytes, seconds))

    @property
    def untried(self) -> list[int]:
        """The sizes without a trial, ascending."""
        tried = {trial.nbytes for trial in self.trials}
        return [size for size in self.sizes if size not in tried]

    @property
    def means(self) -> dict[int, float]:
        """The mean seconds of each size that was tried."""
        return {
            size: fmean(trial.seconds for trial in self.trials if trial.nbytes == size)
            for size in dict.fromkeys(trial.nbytes for trial in self.trials)
        }

    @property
    def best(self) -> Trial:
        """The size with the shortest iteration so far; of equal ones the first that was tried.

        Raises:
            ValueError: there is no trial yet.
        """
        if not self.trials:
            raise ValueError("a tuner without a trial has no best one")
        return min((Trial(*each) for each in self.means.items()), key=lambda trial: trial.seconds)

    @property
    def over(self) -> bool:
        """Whether there have been enough trials."""
        return len(self.trials) >= self.most or not self.untried
