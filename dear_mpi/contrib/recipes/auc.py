"""Few positives among many: maximise the AUC itself, with a loss that has its own parameters.

mpirun -n 4 python -m dear_mpi.contrib.recipes.auc

The loss is a saddle: weights, a and b descend, alpha ascends; ``local:32`` averages all in the flat buffer.
Source: Guo et al., CoDA, arXiv 2005.02426; Ying et al., NeurIPS 2016 (the saddle).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.models.data import load_data
from dear_mpi.models.layers import Dense, Parameter, Relu, Reshape
from dear_mpi.training import SGD, Session, run_world

POSITIVES, EXAMPLES = 25, 1179


class Saddle:
    """h = sigmoid(z), z (n, 1), with what the loss trains: rows h, a, b, alpha (n, 4)."""

    def __init__(self, dtype: Any) -> None:
        self.own = Parameter.of("auc.a_b_alpha", np.zeros(3, dtype))
        self.parameters = [self.own]

    def forward(self, z: Array) -> Array:
        self.h = 0.5 + 0.5 * np.tanh(0.5 * z)  # a sigmoid without overflow
        return np.concatenate([self.h, np.broadcast_to(self.own.value, (len(z), 3))], axis=1)

    def backward(self, dy: Array) -> Array:
        self.own.grad[...] = dy[:, 1:].sum(0)
        self.own.grad[2] *= -1  # alpha ascends
        return dy[:, :1] * self.h * (1 - self.h)


class AucLoss:
    """F of CoDA, equation 3, for targets of 1 (positive) and 0 (negative); p is the share of positives."""

    def __init__(self, p: float) -> None:
        self.p = p

    def forward(self, rows: Array, targets: Array) -> float:
        p, positive = self.p, targets == 1
        h, a, b, alpha = rows.T
        weight = np.where(positive, 1 - p, p)
        side = np.where(positive, -weight, weight)  # negatives push h down, positives up
        far = h - np.where(positive, a, b)
        each = weight * far**2 + 2 * (1 + alpha) * side * h - p * (1 - p) * alpha**2
        to_a, to_b = (np.where(which, -2 * weight * far, 0) for which in (positive, ~positive))
        to_alpha = 2 * side * h - 2 * p * (1 - p) * alpha
        self.gradient = np.stack([2 * weight * far + 2 * (1 + alpha) * side, to_a, to_b, to_alpha], axis=1)
        return float(each.sum(dtype=np.float64))

    def backward(self, scale: float) -> Array:
        return (scale * self.gradient).astype(self.gradient.dtype)


def build(
    shape: tuple[int, ...], classes: int, rng: Any, dtype: Any, p: float = POSITIVES / EXAMPLES
) -> tuple[Sequence[Any], AucLoss]:
    inputs = int(np.prod(shape))
    sizes = [(inputs, 64), (64, 64), (64, 1)]
    first, second, last = (
        Dense(f"dense{number}", (rng.standard_normal(size) * (2 / size[0]) ** 0.5).astype(dtype))
        for number, size in enumerate(sizes)
    )
    return [Reshape((inputs,)), first, Relu(), second, Relu(), last, Saddle(dtype)], AucLoss(p)


def auc(scores: Array, targets: Array) -> float:
    """Return how often a positive is above a negative; a tie counts half."""
    above = scores[targets == 1][:, None] - scores[targets == 0]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def rare(digit: int = 8) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return one digit against the others: few of it to train on, and the whole test set."""
    data = load_data("digits", np.dtype("float32"), 0)
    x, y = data.train.x, (data.train.y == digit).astype(int)
    few, many = (np.flatnonzero(y == label) for label in (1, 0))
    kept = np.concatenate([few[:POSITIVES], many[: EXAMPLES - POSITIVES]])
    return (x[kept], y[kept]), (data.test.x, (data.test.y == digit).astype(int))


def train(
    world: Any, schedule: str = "local:32", *, iterations: int = 600, batch: int = 32, lr: float = 1.0, seed: int = 0
) -> float:
    (x, y), (test_x, test_y) = rare()
    layers, loss = build(x.shape[1:], 2, np.random.default_rng(seed), x.dtype)
    draw = np.random.default_rng([seed, world.rank])
    with Session(layers, loss, world, schedule=schedule, optimizer=SGD(lr=lr)) as session:
        for _ in range(iterations):
            some = draw.integers(0, len(x), batch)
            session.step(x[some], y[some])
    scores = test_x
    for layer in layers:
        scores = layer.forward(scores)
    return auc(scores[:, 0], test_y)


if __name__ == "__main__":
    print(f"AUC {run_world(train):.4f}")
