"""A model whose gradients have the same bits on every processor: it only adds and multiplies, in a fixed order."""

import math

import numpy as np

from dear_mpi.models.layer import Parameter

FEATURES = 24


class Shifts:
    """y = sum over i of weight[i] * (x shifted by i), and a bias."""

    def __init__(self, name, rows, rng, dtype):
        values = rng.integers(-32, 32, (rows, FEATURES)) / 64
        self.weight = Parameter.of(f"{name}.weight", values.astype(dtype))
        self.bias = Parameter.of(f"{name}.bias", np.zeros(FEATURES, dtype))
        self.parameters = [self.weight, self.bias]

    def forward(self, x):
        self.x = x
        y = np.zeros_like(x) + self.bias.value
        for shift, row in enumerate(self.weight.value):
            y += np.roll(x, shift, axis=1) * row
        return y

    def backward(self, dy):
        dx = np.zeros_like(dy)
        self.bias.grad[...] = added(dy)
        for shift, row in enumerate(self.weight.value):
            self.weight.grad[shift] = added(np.roll(self.x, shift, axis=1) * dy)
            dx += np.roll(dy * row, -shift, axis=1)
        return dx


def added(rows):
    """The sum over a batch, row by row: NumPy's own sum groups rows by the width of the processor's vectors."""
    total = np.zeros_like(rows[0]) if len(rows) else np.zeros(FEATURES, rows.dtype)
    for row in rows:
        total += row
    return total


class SquaredError:
    def forward(self, y, targets):
        self.error = y - (targets[:, None] / 4).astype(y.dtype)
        return math.fsum((self.error.astype(np.float64) ** 2).ravel())

    def backward(self, scale):
        return (self.error * np.array(scale / 16, self.error.dtype)).astype(self.error.dtype)


def build(shape, classes, rng, dtype):
    assert shape == (FEATURES,)
    return [Shifts(f"layer{number}", rows, rng, dtype) for number, rows in enumerate((5, 2, 9))], SquaredError()


def write_data(path):
    """40 examples, whose values are whole multiples of 1/64."""
    numbers = np.arange(40 * FEATURES).reshape(40, FEATURES)
    np.savez(path, x=((numbers * 7919) % 127 - 63).astype(np.float32) / 64, y=(np.arange(40) * 5) % 7)
