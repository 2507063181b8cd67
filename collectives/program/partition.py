"""Split a buffer over ranks; no other module knows how.

    count 10 over 4 ranks                   [0 1 2|3 4 5|6 7|8 9]          a shard for each rank
    with weights 1 1 2 1                    [0 1|2 3|4 5 6 7|8 9]          a slow rank owns less
    with counts 1 0 6 3                     [0||1 2 3 4 5 6|7 8 9]         exact counts
    cut into 2 chunks per shard             [0|1|2|3|4 5|6 7|8|9]          for algorithms that send halves two ways

The first ``count % size`` even shards have one more element. Shards and chunks may be empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import Any, TypeVar

__all__ = ["Partition", "chunk_bounds"]

T = TypeVar("T")


@dataclass(frozen=True)
class Partition:
    """Borders of shards, from 0 to the count."""

    borders: tuple[int, ...]

    @classmethod
    def of(cls, count: int, size: int, weights: Sequence[float] | None = None) -> Partition:
        """Split evenly or by weights. Remainders go to the largest fractions, lower ranks first.

        >>> Partition.of(10, 4).borders, Partition.of(10, 4, [1, 1, 2, 1]).borders
        ((0, 3, 6, 8, 10), (0, 2, 4, 8, 10))
        """
        if weights is None:
            return cls((*(chunk_bounds(count, size, rank)[0] for rank in range(size)), count))
        given = all_as(float, weights, size)
        if given is None:
            raise ValueError(f"weights must be {size} numbers, one for each rank, not {weights!r}")
        if not all(0 <= weight < math.inf for weight in given) or not any(given):
            raise ValueError(f"weights must be finite numbers >= 0, not all of them 0, not {weights!r}")
        shares = list(map(Fraction, given))  # exact: all ranks round alike
        total = sum(shares)
        exact = [count * share / total for share in shares]
        counts = [int(part) for part in exact]
        by_remainder = sorted(range(size), key=lambda rank: counts[rank] - exact[rank])
        for rank in by_remainder[: count - sum(counts)]:
            counts[rank] += 1
        return cls((0, *itertools.accumulate(counts)))

    @classmethod
    def exactly(cls, count: int, size: int, counts: Sequence[int]) -> Partition:
        """
        >>> Partition.exactly(10, 4, [1, 0, 6, 3]).borders
        (0, 1, 1, 7, 10)
        """
        given = all_as(index, counts, size)
        if given is None or min(given) < 0 or sum(given) != count:
            due = f"{size} whole numbers >= 0, one for each rank, with the sum {count}"
            raise ValueError(f"counts must be {due}, not {counts!r}")
        return cls((0, *itertools.accumulate(given)))

    @property
    def count(self) -> int:
        return self.borders[-1]

    @property
    def counts(self) -> list[int]:
        return [stop - start for start, stop in itertools.pairwise(self.borders)]

    def shard(self, rank: int) -> slice:
        return slice(self.borders[rank], self.borders[rank + 1])

    def chunks(self, parts: int = 1) -> tuple[int, ...]:
        """Return all chunks' borders, ``parts`` even ones per shard."""
        shards = itertools.pairwise(self.borders)
        firsts = (start + chunk_bounds(stop - start, parts, part)[0] for start, stop in shards for part in range(parts))
        return (*firsts, self.count)


def all_as(kind: Callable[[Any], T], values: Sequence[Any], size: int) -> list[T] | None:
    try:
        found = list(map(kind, values))
    except (TypeError, ValueError):
        return None
    return found if len(found) == size else None


def chunk_bounds(count: int, size: int, index: int) -> tuple[int, int]:
    """
    >>> [chunk_bounds(10, 4, index) for index in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    small, larger = divmod(count, size)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)
