"""Compute K-FAC's Kronecker factors and their inverses, which multiply gradients before ranks exchange them.

    inputs  a, a row for each sample, with a 1 for the bias       A = mean of a^T a     (I, I)
    outputs g, the gradients of one sample's loss                 G = mean of g^T g     (O, O)
    factors   | triangle of A | triangle of G | rows | targets |   of one rank: sums, which add up over ranks
    inverses  | triangle      | triangle      |      |         |   in the same places: (A + pi d)^-1, (G + d / pi)^-1

Ranks send sums and their number of samples, so results depend neither on the number of ranks nor on equal batches. A
layer receives gradients of the mean loss, g / targets, so G is targets times the sum of their squares.

Source: Martens and Grosse 2015, Optimizing Neural Networks with Kronecker-factored Approximate Curvature, sections 3
and 6.3 (pi). Sending triangles follows SPD-KFAC (Shi, Zhang and Li 2021, arXiv 2107.06533).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizer import CALL_COST, Optimizer

PACK_COST, INVERSE_COST = 40, 0.05  # in elements of an update, times size^2 and size^3; measured on one core


def triangle(size: int) -> int:
    return size * (size + 1) // 2


def packed(matrix: Array) -> Array:
    return matrix[np.tril_indices(len(matrix))]


def unpacked(elements: Array, size: int) -> Array:
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = elements
    return matrix + np.tril(matrix, -1).T


@dataclass(frozen=True)
class Sides:
    """Rows of a layer's two factors.

    >>> sides = Sides(2, 1)
    >>> sides.elements, sides.split(np.arange(6.0))[0].tolist()
    (6, [[0.0, 1.0], [1.0, 2.0]])
    """

    inputs: int
    outputs: int

    @property
    def border(self) -> int:
        return triangle(self.inputs)

    @property
    def elements(self) -> int:
        return self.border + triangle(self.outputs) + 2

    @property
    def cost(self) -> int:
        """In the unit of ``Optimizer.cost``."""
        work = sum(PACK_COST * size**2 + INVERSE_COST * size**3 for size in (self.inputs, self.outputs))
        return CALL_COST + round(work)

    @property
    def inverse_flops(self) -> float:
        return 2.0 * (self.inputs**3 + self.outputs**3)

    def flops(self, rows: float) -> float:
        inputs, outputs = self.inputs, self.outputs
        return 2.0 * (rows * (inputs**2 + outputs**2) + inputs * outputs * (inputs + outputs))

    def split(self, array: Array) -> tuple[Array, Array]:
        return unpacked(array[: self.border], self.inputs), unpacked(array[self.border : -2], self.outputs)

    def join(self, into: Array, inputs: Array, outputs: Array, rows: float = 0, targets: float = 0) -> None:
        into[: self.border], into[self.border : -2] = packed(inputs), packed(outputs)
        into[-2:] = rows, targets


@dataclass(frozen=True)
class Inverses(Optimizer):
    """Invert the running means of factors: the optimizer of the parameter that holds the inverses.

    The first factors start each mean. The damping of A is pi times its root and that for G is root / pi, where pi^2 is
    the ratio of mean eigenvalues.

    >>> value, state, sides = np.zeros(6), [np.zeros(6)], Sides(2, 1)
    >>> Inverses(1.0, 2, 1, damping=0.25).update(1, value, np.array([4.0, 0, 4, 0.5, 1, 2]), state)
    >>> state[0][:4].tolist(), [matrix.round(3).tolist() for matrix in sides.split(value)]
    ([4.0, 0.0, 4.0, 1.0], [[[0.2, 0.0], [0.0, 0.2]], [[0.8]]])
    """

    inputs: int = 0  # rows of A and of G
    outputs: int = 0
    damping: float = 0.03
    keep: float = 0.9

    scope: ClassVar[str] = "tensor"
    state_arrays = 1

    @property
    def sides(self) -> Sides:
        return Sides(self.inputs, self.outputs)

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        sides, mean = self.sides, state[0]
        rows, targets = grad[-2:]
        grad[: sides.border] /= max(rows, 1)
        grad[sides.border : -2] *= targets
        keep = 0.0 if iteration == 1 else self.keep
        mean *= keep
        mean += (1 - keep) * grad
        inputs, outputs = sides.split(mean)
        eigenvalues = [max(float(np.trace(each)) / len(each), 0.0) for each in (inputs, outputs)]
        pi = math.sqrt(eigenvalues[0] / eigenvalues[1]) if min(eigenvalues) > 0 else 1.0
        root = math.sqrt(self.damping)
        sides.join(value, inverse(inputs, pi * root), inverse(outputs, root / pi))

    def cost(self, shape: tuple[int, ...]) -> int:
        return self.sides.cost


def inverse(matrix: Array, damping: float) -> Array:
    try:
        return np.asarray(np.linalg.inv(matrix + damping * np.eye(len(matrix))))
    except np.linalg.LinAlgError:  # not finite, or too large for the damping to count
        return np.full_like(matrix, np.nan)  # training then ends with an error


@dataclass(frozen=True)
class KFAC(Optimizer):
    """Momentum on gradients that layers have multiplied by inverse factors (``dear_mpi/models/factored.py``).

    m = momentum * m + g; w -= lr * m; weight decay is decoupled. Parameters without factors use plain gradients.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    damping: float = 0.1
    factor_decay: float = 0.9

    scope: ClassVar[str] = "tensor"
    gradients_alone: ClassVar[bool] = False
    state_arrays = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping:
            raise ValueError("damping must be above zero, not 0: a factor of few samples has no inverse")
        if self.factor_decay >= 1:
            raise ValueError(f"factor_decay must be below 1, not {self.factor_decay}")

    def inverses(self, sides: Sides) -> Inverses:
        return Inverses(self.lr, sides.inputs, sides.outputs, self.damping, self.factor_decay)

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        (velocity,) = state
        value *= 1 - self.lr * self.weight_decay
        velocity *= self.momentum
        velocity += grad
        value -= np.multiply(velocity, self.lr, out=grad)
