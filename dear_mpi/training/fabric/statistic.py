"""Check the summed gradients on all ranks, by statistics, before any gradient is used.

The built-in statistic is the norm, for clipping and loss scaling. Its sums of squares are exact, so they do not depend
on which rank sums which part:

    squares of 128 bytes, as they travel --rounded, in float64--> atoms = mantissa x 2^exponent --> sums by exponent

Shards begin and end between atoms, for any buckets and ranks. Mantissas are cut into halves of 27 and 26 bits. Up to
2^26 atoms, sums of halves of one exponent are whole numbers below 2^53: exact in any order.

Sources: Kulisch, Computer Arithmetic and Validity, 2013 (sums by exponent); Micikevicius et al., Mixed Precision
Training, ICLR 2018, section 3.2, with the numbers of PyTorch (loss scaling).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.slab import CHUNK_BYTES

LOW, HIGH = -1074, 1025  # exponents of float64
COUNT = 2 * (HIGH - LOW) + 1  # two halves per exponent, and the number of non-finite atoms
HALF = 26  # bits of the lower half of a mantissa
ROWS = 1 << 15  # atoms of 128 bytes, at a time
LEAST = 1.0


class Statistic(ABC):
    """Compute a few sums over all gradients, in fp64, and a decision.

    Sums must not depend on how elements are shared out, or ranks and cuts would give different bits.
    """

    count: int  # number of sums

    @property
    def called(self) -> str:
        return type(self).__name__

    @property
    def scale(self) -> float:
        """Return the factor of gradients before they travel."""
        return 1.0

    @abstractmethod
    def sums(self, shard: Array) -> Array:
        """Return the sums of a flat shard, a multiple of 128 bytes, in the type that travels.

        It is padded with zeros, which must add nothing.
        """

    @abstractmethod
    def factor(self, sums: Array) -> float | None:
        """Return the gradient factor from the sums over all ranks; None to skip the gradients."""


class Verdict:
    """Decide the factor of an iteration's gradients, or None to skip them: the global gradient check.

    Each rank adds its shard at the end of a bucket's way out, before the way back may round the sums. Then
    the engine calls it: an all-reduce of a few kB (``plan``). Factors multiply; one may reject gradients.
    """

    def __init__(self, statistics: Sequence[Statistic], sums: Array, plan: Any) -> None:
        self.statistics, self.sums, self.plan = statistics, sums, plan
        ends = list(accumulate(each.count for each in statistics))
        self.each = [sums[end - statistic.count : end] for end, statistic in zip(ends, statistics, strict=True)]
        self.factor: float | None = 1.0

    @property
    def scale(self) -> float:
        return math.prod(statistic.scale for statistic in self.statistics)

    def add(self, shard: Array) -> None:
        """Add this rank's shard of a bucket, which may be empty."""
        for statistic, sums in zip(self.statistics, self.each, strict=True):
            sums += statistic.sums(shard)

    def __call__(self) -> None:
        self.plan()
        factors = [statistic.factor(sums.copy()) for statistic, sums in zip(self.statistics, self.each, strict=True)]
        self.sums[...] = 0
        self.factor = None if None in factors else math.prod(factor for factor in factors if factor is not None)


@dataclass
class LossScale:
    """Halve a power of two when gradients overflow; double it after ``interval`` iterations without.

    >>> scale = LossScale(8.0, interval=2)
    >>> scale.overflowed(), scale.scale
    (True, 4.0)
    >>> scale.fitted(), scale.fitted(), scale.scale
    (None, None, 8.0)
    """

    scale: float = 2.0**16
    interval: int = 2000
    good: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        """Raise a ValueError for invalid numbers, perhaps from a file."""
        counts = all(type(count) is int and count >= 0 for count in (self.interval, self.good, self.skipped))
        if type(self.scale) is not float or not LEAST <= self.scale < math.inf or not counts:
            raise ValueError(f"a loss scale must be a finite number of at least {LEAST}, with counts, not {self}")

    def overflowed(self) -> bool:
        """Halve the scale, if possible; return whether to skip."""
        if self.scale <= LEAST:
            return False
        self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1
        return True

    def fitted(self) -> None:
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0


class Norm(Statistic):
    """Derive the gradient factor from the norm of the last gradients.

    Longer gradients than ``clip`` are scaled by clip / norm (torch: clip / (norm + 1e-6)).
    """

    count = COUNT
    called = "the norm"

    def __init__(self, clip: float | None = None, loss_scale: LossScale | None = None) -> None:
        self.clip, self.loss_scale, self.norm = clip, loss_scale, 0.0

    @property
    def scale(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.scale

    def sums(self, shard: Array) -> Array:
        return sums_of_squares(shard)

    def factor(self, sums: Array) -> float | None:
        """Return the gradient factor; for a non-finite norm None if the loss scale can be halved, else NaN."""
        scale = self.scale
        self.norm = root_of(sums) / scale
        finite = self.norm < math.inf
        if self.loss_scale is not None:
            if not finite and self.loss_scale.overflowed():
                return None
            if finite:
                self.loss_scale.fitted()
        if not finite:
            return math.nan
        return (1.0 if self.clip is None or self.norm <= self.clip else self.clip / self.norm) / scale


def sums_of_squares(array: Array) -> Array:
    """Return ``COUNT`` whole numbers in float64; their sums over parts of an array give its sum of squares.

    The array is flat, a multiple of 128 bytes, floating-point.
    """
    rows = array.reshape(-1, CHUNK_BYTES // array.itemsize)
    total: Array = array_module(array).zeros(COUNT)
    for start in range(0, len(rows), ROWS):
        total += sums_of_atoms(atoms_of(rows[start : start + ROWS]))
    return total


def atoms_of(rows: Array) -> Array:
    """Sum the squares of each row, in an order equal on all devices."""
    with np.errstate(all="ignore"):  # overflow is counted
        terms = rows.astype(np.float64) ** 2
        while terms.shape[1] > 1:
            half = terms.shape[1] // 2
            terms = terms[:, :half] + terms[:, half:]
    return terms[:, 0]


def sums_of_atoms(atoms: Array) -> Array:
    xp: Any = array_module(atoms)
    finite = xp.isfinite(atoms)
    mantissas, exponents = xp.frexp(xp.where(finite, atoms, 0.0))
    upper = xp.floor(xp.ldexp(mantissas, 53 - HALF))
    lower = xp.ldexp(mantissas, 53) - xp.ldexp(upper, HALF)
    numbers = exponents.astype(np.int64) - LOW
    sums = [xp.bincount(numbers, weights=half, minlength=HIGH - LOW) for half in (upper, lower)]
    return xp.concatenate([*sums, (~finite).sum(keepdims=True).astype(np.float64)])


def root_of(sums: Array) -> float:
    """Return the root of a sum of squares, rounded once; infinity if an atom was not finite.

    >>> root_of(sums_of_squares(np.full(32, 0.5)) + sums_of_squares(np.full(64, 1.0)))
    8.48528137423857
    """
    *halves, wrong = to_host(sums).tolist()
    if wrong:
        return math.inf
    upper, lower = halves[: HIGH - LOW], halves[HIGH - LOW :]
    total = Fraction(0)
    for number, (high, low) in enumerate(zip(upper, lower, strict=True)):
        if high or low:
            total += (int(high) * 2**HALF + int(low)) * Fraction(2) ** (number + LOW - 53)
    return math.sqrt(total) if total < Fraction(2) ** 1023 else math.inf
