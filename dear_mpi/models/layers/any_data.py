"""Layers for any data, and softmax cross-entropy, the loss of a classifier or a language model.

Legend: N samples, D inputs, E outputs, G normalised axes, ``...`` any axes.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dear_mpi.kernels.array import Array, array_module, library_of
from dear_mpi.models.layer import Layer, Parameter, Split, is_split

# The constants of Gelu's tanh form (Hendrycks and Gimpel 2016, section 2).
A = math.sqrt(2.0 / math.pi)
B = 0.044715
# Keeps a constant sample finite; far below the variance of any useful one.
EPSILON = 1e-5


class Dense(Split):
    """y = x W + b over the last axis, x (..., D), W (D, E), b (E,), y (..., E); the bias starts at zero.

    Cost: 2 N D E flops forward, with N over all of ``...``, and twice that backward ("backward takes two forwards"). A
    model's last layer has ``outputs=None``, see ``Parameter``.

    >>> Dense("fc", np.ones((3, 2))).forward(np.ones((5, 4, 3))).shape
    (5, 4, 2)
    """

    def __init__(self, name: str, weight: Array, *, outputs: int | None = 1) -> None:
        if weight.ndim != 2:
            raise ValueError(f"weight of {name} must have shape (inputs, outputs), not {weight.shape}")
        self.weight = Parameter.of(f"{name}.weight", weight, outputs=outputs)
        self.bias = Parameter.of(f"{name}.bias", np.zeros_like(weight[0]))
        self.parameters = (self.weight, self.bias)

    def forward(self, x: Array) -> Array:
        inputs, outputs = self.weight.value.shape
        self._rows = x.reshape(-1, inputs)
        y = self._rows @ self.weight.value + self.bias.value
        return y.reshape(*x.shape[:-1], outputs)

    def backward_input(self, dy: Array) -> Array:
        """dx = dy W^T."""
        inputs, outputs = self.weight.value.shape
        self._dy_rows = dy.reshape(-1, outputs)
        dx = self._dy_rows @ self.weight.value.T
        return dx.reshape(*dy.shape[:-1], inputs)

    def rows(self) -> tuple[Array, Array, int]:
        """Return inputs, output gradients and the number of targets, for ``contrib/kfac``."""
        return self._rows, self._dy_rows, len(self._rows)

    def backward_weights(self) -> None:
        """dW = x^T dy and db = sum dy, over all N rows."""
        xp = array_module(self._dy_rows)
        xp.matmul(self._rows.T, self._dy_rows, out=self.weight.grad)
        xp.sum(self._dy_rows, axis=0, out=self.bias.grad)
        del self._dy_rows


class LayerNorm:
    """y = gain * (x - mean) / sqrt(variance + epsilon) + bias, x and y (..., *G), gain and bias G.

    Each sample is normalised separately, over its trailing axes G: (D,) for tokens, (C, H, W) for images. We omit batch
    normalisation on purpose: its statistics depend on the samples that share a rank, so the same batch on another
    number of ranks would train another model.

    >>> LayerNorm("norm", (2,), np.float64).forward(np.array([[3.0, 5.0]])).round(3)
    array([[-1.,  1.]])
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.gain = Parameter.of(f"{name}.gain", np.ones(shape, dtype))
        self.bias = Parameter.of(f"{name}.bias", np.zeros(shape, dtype))
        self.parameters = (self.gain, self.bias)
        self._axes = tuple(range(-len(shape), 0))

    def forward(self, x: Array) -> Array:
        shape = self.gain.value.shape
        if x.shape[-len(shape) :] != shape:
            raise ValueError(f"x must have shape (..., *{shape}) to meet {self.gain.name}, not {x.shape}")
        xp = array_module(x)
        centred = x - x.mean(axis=self._axes, keepdims=True)
        variance = xp.mean(centred * centred, axis=self._axes, keepdims=True)
        self._inverse_deviation = 1.0 / xp.sqrt(variance + EPSILON)
        self._normal = centred * self._inverse_deviation
        y: Array = self._normal * self.gain.value + self.bias.value
        return y

    def backward(self, dy: Array) -> Array:
        """Return dx: the normalised x's gradient, projected off the mean and off the normalised x.

        Normalising removes these two directions from x, so no gradient may flow along them.
        """
        leading = tuple(range(dy.ndim - len(self._axes)))
        self.gain.grad[...] = (dy * self._normal).sum(axis=leading)
        self.bias.grad[...] = dy.sum(axis=leading)
        dnormal = dy * self.gain.value
        mean = dnormal.mean(axis=self._axes, keepdims=True)
        along = (dnormal * self._normal).mean(axis=self._axes, keepdims=True)
        dx: Array = (dnormal - mean - self._normal * along) * self._inverse_deviation
        return dx


class Relu:
    """y = max(x, 0); the gradient at 0 is taken as 0.

    >>> Relu().forward(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array) -> Array:
        self._positive = x > 0
        y: Array = array_module(x).maximum(x, 0.0)
        return y

    def backward(self, dy: Array) -> Array:
        return dy * self._positive


class Gelu:
    """y = x/2 (1 + tanh(a (x + b x^3))): the tanh form, smooth everywhere.

    >>> Gelu().forward(np.array([-1.0, 2.0])).round(3)
    array([-0.159,  1.955])
    """

    parameters: tuple[Parameter, ...] = ()

    def forward(self, x: Array) -> Array:
        # Products, not powers: x ** 3 calls pow() for every element, which costs more than all other operations.
        self._x = x
        self._tanh = array_module(x).tanh(A * (x + B * (x * x * x)))
        y: Array = 0.5 * x * (1.0 + self._tanh)
        return y

    def backward(self, dy: Array) -> Array:
        """Apply the product rule, with tanh' = 1 - tanh^2."""
        x, tanh = self._x, self._tanh
        slope = A * (1.0 + 3.0 * B * (x * x))
        dx: Array = dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        return dx


class Reshape:
    """x (N, ...) as y (N, *shape); a shape of one axis makes every sample a row of features.

    >>> Reshape((1, 8, 8)).forward(np.ones((5, 64))).shape
    (5, 1, 8, 8)
    """

    parameters: tuple[Parameter, ...] = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def forward(self, x: Array) -> Array:
        self._x_shape = x.shape
        return x.reshape(len(x), *self._shape)

    def backward(self, dy: Array) -> Array:
        return dy.reshape(self._x_shape)


class Residual(Split):
    """y = x + f(x); f is a chain of layers that keeps the shape. The trainer sees one layer.

    >>> Residual([Relu()]).forward(np.array([-1.0, 2.0]))
    array([-1.,  4.])
    """

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
    """The negative log-likelihood of targets (...), integers below C, maybe none, by logits (..., C).

    The loss of a target c is -log softmax(z)[c] = log sum exp(z) - z[c], in nats; its gradient is softmax(z) -
    onehot(c). ``forward`` returns a *sum* and ``backward`` takes the *scale*: a mean over local samples is wrong if
    ranks hold unequal parts of a batch. With scale = 1 / (targets in the job's whole batch) on every rank, the sum of
    all ranks' gradients is the gradient of the mean loss.

    >>> import numpy as np
    >>> loss = SoftmaxCrossEntropy()
    >>> round(float(loss.forward(np.array([[0.0, 0.0]]), np.array([1]))), 3)
    0.693
    >>> loss.backward(1.0)
    array([[ 0.5, -0.5]])
    """

    def forward(self, logits: Array, targets: Array) -> Array:
        """Return the sum of the local targets' losses, in float64: an array without axes."""
        if targets.shape != logits.shape[:-1]:
            raise ValueError(f"targets must have shape {logits.shape[:-1]}, one per row of logits, not {targets.shape}")
        check_indices("targets", targets, logits.shape[-1])
        xp = array_module(logits)
        self._shape = logits.shape
        rows = logits.reshape(-1, logits.shape[-1])
        # Softmax is invariant to a common shift; with the maximum at 0 nothing overflows and the sum is at least 1.
        shifted = rows - rows.max(axis=1, keepdims=True)
        self._log_p = shifted - xp.log(xp.exp(shifted).sum(axis=1, keepdims=True))
        self._targets = xp.arange(len(rows)), targets.reshape(-1)
        total: Array = -self._log_p[self._targets].sum(dtype=xp.float64)
        return total

    def backward(self, scale: float) -> Array:
        """dlogits = (softmax - onehot) * scale, (..., C)."""
        dlogits: Array = array_module(self._log_p).exp(self._log_p)
        dlogits[self._targets] -= 1.0
        dlogits *= scale
        return dlogits.reshape(self._shape)


def check_indices(what: str, x: Array, count: int) -> None:
    """Check that x holds whole numbers from 0 to ``count`` - 1: NumPy would take -1 for the last row.

    Arrays on a GPU are not checked, because the host would wait. Data sets are checked when read.
    """
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, not of type {x.dtype}")
    if library_of(x) == "numpy" and x.size and not 0 <= x.min() <= x.max() < count:
        raise ValueError(f"{what} must be from 0 to {count - 1}, not from {x.min()} to {x.max()}")
