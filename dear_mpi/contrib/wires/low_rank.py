"""Approximate matrices by products of two thin ones: M, n x m, becomes P Q^T, with P n x r and Q m x r.

    bucket          | W (n x m)      | b | V (k x l)      | c |
    codes, turn 0   | P of W | b | Q of V | c |                     then Q of W, and P of V
    factors         | P, Q of W      |   | P, Q of V      |   |     as long as the bucket: they take half at most

One factor has orthonormal columns; the other, M times it, is the payload, which adds up over ranks. Tensors are
matrices of their first dimension and the rest. Vectors are sent uncompressed, and matrices with factors of more than
half their size (as with torch's ``min_compression_rate=2``).

All ranks need bit-identical factors: columns are made orthonormal in float64, one after the other (modified
Gram-Schmidt, twice), and P Q^T is added up column by column: no library chooses an order.

Source: Vogels et al., PowerSGD, NeurIPS 2019; Zhang et al., ACP-SGD, ICDCS 2023, arXiv 2306.08881.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype
from dear_mpi.training.routes import Shape

LEFT, RIGHT = 0, 1  # P and Q, the factors of rows and of columns
LEAST_GAIN = 2  # least ratio of a matrix's elements to its factors'
SEED, EPSILON = 20230608, 1e-7
PIECE = 1 << 16  # elements: stays in cache


@dataclass(frozen=True)
class LowRank:
    rank: int

    @property
    def encode_s(self) -> float:
        return (1.3 + 0.1 * self.rank) * 1e-9

    @property
    def decode_s(self) -> float:
        return 0.6e-9 * self.rank

    def matrix(self, shape: Shape) -> tuple[int, int] | None:
        """Return a matrix's rows and columns; None if the tensor is sent uncompressed."""
        if len(shape) < 2:
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        return (rows, columns) if LEAST_GAIN * self.rank * (rows + columns) <= rows * columns else None

    def first_sides(self, shapes: Sequence[Shape]) -> list[int]:
        """Return each tensor's factor in turn 0 (turn 1 sends the other), for turns of similar length."""
        matrices = [self.matrix(shape) for shape in shapes]
        found, ahead = [LEFT] * len(shapes), 0  # excess rows and columns of turn 0
        excess = {number: matrix[LEFT] - matrix[RIGHT] for number, matrix in enumerate(matrices) if matrix}
        for number in sorted(excess, key=lambda number: -abs(excess[number])):
            found[number] = LEFT if excess[number] * ahead <= 0 else RIGHT
            ahead += excess[number] * (1 if found[number] == LEFT else -1)
        return found

    def lengths(self, shapes: Sequence[Shape], sides: Sequence[int], *, others: bool = True) -> list[int]:
        """Return each tensor's payload elements; ``others``: including uncompressed tensors."""
        matrices = [self.matrix(shape) for shape in shapes]
        as_they_are = [math.prod(shape) * others for shape in shapes]
        return [
            self.rank * matrix[side] if matrix else length
            for matrix, side, length in zip(matrices, sides, as_they_are, strict=True)
        ]


def orthonormal(factor: Array) -> Array:
    """Return orthonormal columns that span a factor's columns, in float64.

    A column without a new direction, such as zeros, is replaced by a random one: no gradient removes a direction
    forever.
    """
    xp: Any = array_module(factor)
    rows = xp.ascontiguousarray(factor.T, np.float64)
    drawn = xp.asarray(np.random.default_rng([SEED, *rows.shape]).standard_normal(rows.shape))
    for number, row in enumerate(rows):
        for candidate in (row.copy(), drawn[number]):
            row[...] = candidate
            for other in (*rows[:number], *rows[:number]):
                row -= (row * other).sum() * other
            length, before = (xp.sqrt((each * each).sum()) for each in (row, candidate))
            if not length <= EPSILON * before:  # also true for NaN
                break
        row /= length
    found: Array = rows.T
    return found


def multiply(left: Array, right: Array, out: Array) -> None:
    """Compute P Q^T, some rows at a time, in one order on all ranks."""
    dtype = compute_dtype(out.dtype)
    left, right = left.astype(dtype), right.T.astype(dtype)
    step = max(1, PIECE // max(1, right.shape[1]))
    for start in range(0, len(out), step):
        part = left[start : start + step]
        total = part[:, :1] * right[0]
        for column in range(1, len(right)):
            total += part[:, column : column + 1] * right[column]
        out[start : start + step] = total
