"""How well a contestant does on examples that it has not seen, by the time that it has trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True)
class Course:
    """Test accuracies between turns, and the seconds of the iterations before each of them.

    >>> course = Course(seconds=(1.0, 2.0, 3.0), accuracy=(0.5, 0.8, 0.9))
    >>> course.at(2.5), course.at(0.5), course.until(0.75), course.until(0.95)
    (0.8, None, 2.0, None)
    """

    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]

    def at(self, seconds: float) -> float | None:
        """The last accuracy that was known by then; None before the first."""
        known = [found for when, found in zip(self.seconds, self.accuracy, strict=True) if when <= seconds]
        return known[-1] if known else None

    def until(self, wanted: float) -> float | None:
        """After how many seconds it was first as good as that; None if it never was."""
        return next((when for when, found in zip(self.seconds, self.accuracy, strict=True) if found >= wanted), None)


def seconds_of(iteration_s: Sequence[float], lengths: Sequence[int], fill: int, first: int) -> tuple[float, ...]:
    """The seconds of all iterations before the first turn, and after each.

    In each turn all iterations take what the counted ones do on average, for those that fill the pipeline are shorter
    at its beginning; those before the first turn take what its own do.

    Args:
        iteration_s: of all turns, one after the other.
        lengths: iterations of each turn, of which ``fill`` are not counted.
        first: iterations before the first turn.

    >>> seconds_of([1.0, 2.0, 2.0, 1.0, 4.0, 4.0], [3, 3], fill=1, first=2)
    (4.0, 10.0, 22.0)
    """
    ends = list(accumulate(lengths))
    each_s = [float(np.mean(iteration_s[end - length + fill : end])) for end, length in zip(ends, lengths, strict=True)]
    turns_s = [length * seconds for length, seconds in zip(lengths, each_s, strict=True)]
    return tuple(accumulate([first * each_s[0], *turns_s]))
