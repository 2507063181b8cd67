"""Layers with hand-written forward and backward, on NumPy or CuPy arrays, and one loss. Four rules hold for all:

- the array library is the input's: moving a model to a GPU means moving its parameters;
- the output has the input's dtype: Python's scalars never widen an array;
- samples are independent: ranks may split a batch in any way, even into none;
- gradients are written into ``Parameter.grad``.

Legend: N samples, D inputs, E outputs, C classes, ``...`` any axes.
"""

import math
from collections.abc import Sequence

import numpy as np

from dear_mpi.kernels.array import Array, array_module, library_of
from dear_mpi.models.layer import Layer, Parameter, Split, is_split

__all__ = ["Dense", "Gelu", "Layer", "Parameter", "Relu", "Reshape", "Residual", "SoftmaxCrossEntropy"]


class Dense(Split):
    """y = x W + b over the last axis, x (..., D), W (D, E), b (E,), y (..., E); the bias starts at zero.

    Cost: 2 N D E flops forward, with N over all of ``...``, and twice that backward.
    """

    def __init__(self, name: str, weight: Array, *, outputs: int | None = 1) -> None:
        if weight.ndim != 2:
            raise ValueError(f"weight of {name} must have shape (inputs, outputs), not {weight.shape}")
        self.weight = Parameter.of(f"{name}.weight", weight, outputs=outputs)
        self.bias = Parameter.of(f"{name}.bias", np.zeros_like(weight[0]))
        self.parameters = (self.weight, self.bias)

    def forward(self, x: Array) -> Array:
        self._rows = x.reshape(-1, len(self.weight.value))
        return (self._rows @ self.weight.value + self.bias.value).reshape(*x.shape[:-1], self.weight.value.shape[1])

    def backward_input(self, dy: Array) -> Array:
        """dx = dy W^T."""
        self._dy_rows = dy.reshape(-1, self.weight.value.shape[1])
        return (self._dy_rows @ self.weight.value.T).reshape(*dy.shape[:-1], len(self.weight.value))

    def rows(self) -> tuple[Array, Array, int]:
        """Return inputs and output gradients for K-FAC, in N rows, and N."""
        return self._rows, self._dy_rows, len(self._rows)

    def backward_weights(self) -> None:
        """dW = x^T dy, db = sum dy over N rows."""
        xp = array_module(self._dy_rows)
        xp.matmul(self._rows.T, self._dy_rows, out=self.weight.grad)
        xp.sum(self._dy_rows, axis=0, out=self.bias.grad)
        del self._dy_rows


class Relu:
    """y = max(x, 0); gradient at 0: 0."""

    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array) -> Array:
        self._positive = x > 0
        return array_module(x).maximum(x, 0.0)

    def backward(self, dy: Array) -> Array:
        return dy * self._positive


class Gelu:
    """y = x/2 (1 + tanh(a (x + b x^3))): the tanh form (Hendrycks and Gimpel 2016, section 2)."""

    A, B = math.sqrt(2.0 / math.pi), 0.044715
    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array) -> Array:
        # Products: x ** 3 calls pow(), which costs more than all else.
        self._x = x
        self._tanh = array_module(x).tanh(self.A * (x + self.B * (x * x * x)))
        return 0.5 * x * (1.0 + self._tanh)

    def backward(self, dy: Array) -> Array:
        """Apply the product rule, with tanh' = 1 - tanh^2."""
        x, tanh = self._x, self._tanh
        slope = self.A * (1.0 + 3.0 * self.B * (x * x))
        return dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)


class Reshape:
    """x (N, ...) as y (N, *shape); a shape of one axis makes every sample a row of features."""

    parameters: tuple[Parameter, ...] = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def forward(self, x: Array) -> Array:
        self._x_shape = x.shape
        return x.reshape(len(x), *self._shape)

    def backward(self, dy: Array) -> Array:
        return dy.reshape(self._x_shape)


class Residual(Split):
    """y = x + f(x); f is a chain of layers that keeps the shape."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self._split = tuple(layer if is_split(layer) else None for layer in layers)
        self.parameters = tuple(parameter for layer in layers for parameter in layer.parameters)

    def forward(self, x: Array) -> Array:
        y = x
        for layer in self.layers:
            y = layer.forward(y)
        return x + y

    def backward_input(self, dy: Array) -> Array:
        dx = dy
        for layer, split in zip(self.layers[::-1], self._split[::-1], strict=True):
            dx = layer.backward(dx) if split is None else split.backward_input(dx)
        return dy + dx

    def backward_weights(self) -> None:
        for split in filter(None, self._split[::-1]):
            split.backward_weights()


class SoftmaxCrossEntropy:
    """The negative log-likelihood of targets (...), integers below C, by logits (..., C), in nats.

    ``forward`` returns a *sum* and ``backward`` takes the *scale*: a mean over local samples is wrong if ranks hold
    unequal parts of a batch. With scale = 1 / (targets in the whole batch), all ranks' gradients sum to the mean
    loss's.
    """

    def forward(self, logits: Array, targets: Array) -> Array:
        """Return the sum of -log softmax(z)[c] = log sum exp(z) - z[c], in float64: an array without axes."""
        if targets.shape != logits.shape[:-1]:
            raise ValueError(f"targets must have shape {logits.shape[:-1]}, one per row of logits, not {targets.shape}")
        check_indices("targets", targets, logits.shape[-1])
        xp = array_module(logits)
        self._shape = logits.shape
        rows = logits.reshape(-1, logits.shape[-1])
        # A common shift changes nothing; with the maximum at 0 nothing overflows and the sum is at least 1.
        shifted = rows - rows.max(axis=1, keepdims=True)
        self._log_p = shifted - xp.log(xp.exp(shifted).sum(axis=1, keepdims=True))
        self._targets = xp.arange(len(rows)), targets.reshape(-1)
        return -self._log_p[self._targets].sum(dtype=xp.float64)

    def backward(self, scale: float) -> Array:
        """dlogits = (softmax - onehot) * scale, (..., C)."""
        dlogits = array_module(self._log_p).exp(self._log_p)
        dlogits[self._targets] -= 1.0
        dlogits *= scale
        return dlogits.reshape(self._shape)


def check_indices(what: str, x: Array, count: int) -> None:
    """Check that x holds whole numbers below ``count``: NumPy would take -1 for the last row.

    Not on a GPU: the host would wait.
    """
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, not of type {x.dtype}")
    if library_of(x) == "numpy" and x.size and not 0 <= x.min() <= x.max() < count:
        raise ValueError(f"{what} must be from 0 to {count - 1}, not from {x.min()} to {x.max()}")
