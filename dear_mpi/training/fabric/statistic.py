"""Statistics: what all ranks must know of the summed gradients before any of them is used.

Ours is the norm, which clipping and loss scaling look at. Loss scaling multiplies gradients before they travel,
so that small ones do not vanish in fp16. The norm's sums of squares are exact, so that they do not depend on which rank
adds up which part of the line:

    squares of 128 bytes, as they travel --rounded, in float64--> atoms = mantissa x 2^exponent --> sums by exponent

Shards begin and end between atoms, wherever buckets are cut and however many ranks there are. Mantissas are cut into
two halves of 27 and 26 bits. Sums of the halves of atoms of one exponent are whole numbers below 2^53, up to 2^26
atoms, so they are exact in any order, on the ranks and between them.

Sources: sums by exponent are as in Kulisch's long accumulator (Kulisch, Computer Arithmetic and Validity, 2013); loss
scaling: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2, with the numbers of PyTorch.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.slab import CHUNK_BYTES

LOW, HIGH = -1074, 1025  # exponents of float64
COUNT = 2 * (HIGH - LOW) + 1  # two halves for each exponent, and how many atoms are not finite
HALF = 26  # bits of the lower half of a mantissa
ROWS = 1 << 15  # of 128 bytes, at a time
LEAST = 1.0  # of a loss scale


class Statistic(ABC):
    """A few sums over the elements of all gradients, in fp64, and what follows from them.

    The sums must not depend on how elements are shared out, or ranks and cuts would not give the same bits.
    """

    count: int  # how many sums there are

    @property
    def called(self) -> str:
        """What it is, in logs and errors."""
        return type(self).__name__

    @property
    def scale(self) -> float:
        """What gradients are multiplied by before they travel."""
        return 1.0

    @abstractmethod
    def sums(self, shard: Array) -> Array:
        """Those of a shard: flat, of a multiple of 128 bytes, in the type that travels.

        Tensors are padded with zeros, so zeros must add nothing.
        """

    @abstractmethod
    def factor(self, sums: Array) -> float | None:
        """What all gradients are multiplied by, from the sums over all ranks; None if they are not to be used."""


@dataclass
class LossScale:
    """A power of two, which is halved when gradients overflow, and doubled when none has overflowed for long.

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
        """See that the numbers, perhaps of a file, have a meaning; ValueError if not."""
        counts = all(type(count) is int and count >= 0 for count in (self.interval, self.good, self.skipped))
        if type(self.scale) is not float or not LEAST <= self.scale < math.inf or not counts:
            raise ValueError(f"a loss scale must be a finite number of at least {LEAST}, with counts, not {self}")

    def overflowed(self) -> bool:
        """Halve the scale, if possible; return whether the iteration is to be skipped for it."""
        if self.scale <= LEAST:
            return False
        self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1
        return True

    def fitted(self) -> None:
        """Count an iteration in which all gradients were finite."""
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0


class Norm(Statistic):
    """What gradients are multiplied by, from their norm.

    Args:
        clip: the largest norm of all gradients; longer ones are scaled down to it, and not, as by ``clip_grad_norm_``
            of torch, by clip / (norm + 1e-6). None for no limit.
        loss_scale: what gradients were multiplied by.

    Attributes:
        norm: of the last gradients.
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
        """Where the norm is not finite: None where the loss scale can be halved, to skip the iteration; else NaN, which
        the update then finds."""
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
    """``COUNT`` whole numbers in float64, whose sum over parts of an array says the sum of its squares.

    The array is flat, of a multiple of 128 bytes, and of any floating type.
    """
    rows = array.reshape(-1, CHUNK_BYTES // array.itemsize)
    total: Array = array_module(array).zeros(COUNT)
    for start in range(0, len(rows), ROWS):
        total += sums_of_atoms(atoms_of(rows[start : start + ROWS]))
    return total


def atoms_of(rows: Array) -> Array:
    """The sums of squares of rows, in an order that is the same on all devices."""
    with np.errstate(all="ignore"):  # what overflows is counted
        terms = rows.astype(np.float64) ** 2
        while terms.shape[1] > 1:
            half = terms.shape[1] // 2
            terms = terms[:, :half] + terms[:, half:]
    return terms[:, 0]


def sums_of_atoms(atoms: Array) -> Array:
    """The halves of their mantissas, added up for each exponent."""
    xp: Any = array_module(atoms)
    finite = xp.isfinite(atoms)
    mantissas, exponents = xp.frexp(xp.where(finite, atoms, 0.0))
    upper = xp.floor(xp.ldexp(mantissas, 53 - HALF))
    lower = xp.ldexp(mantissas, 53) - xp.ldexp(upper, HALF)
    numbers = exponents.astype(np.int64) - LOW
    sums = [xp.bincount(numbers, weights=half, minlength=HIGH - LOW) for half in (upper, lower)]
    return xp.concatenate([*sums, (~finite).sum(keepdims=True).astype(np.float64)])  # type: ignore[no-any-return]


def root_of(sums: Array) -> float:
    """The root of a sum of squares, rounded once; infinity where an atom was not finite.

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
