"""Layer normalisation: y = gain * (x - mean) / sqrt(variance + epsilon) + bias, over the trailing axes of each sample.

There is no batch normalisation here, on purpose: its statistics depend on which samples share a rank, so the same
batch over another number of ranks would train another model.

Legend: G the normalised axes, (D,) for tokens and (C, H, W) for images; ``...`` the leading axes.
Shapes: x (..., *G), gain and bias G, y (..., *G).
"""

import numpy as np
import numpy.typing as npt

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter

# Keeps a constant sample finite; far below the variance of any useful one.
EPSILON = 1e-5


class LayerNorm:
    """Mean 0 and variance 1 over the trailing axes that ``shape`` names, then a trained gain and bias per element.

    >>> LayerNorm("norm", (2,), np.float64).forward(np.array([[3.0, 5.0]])).round(3)
    array([[-1.,  1.]])
    """

    _normal: Array
    _inverse_deviation: Array

    def __init__(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.gain = Parameter.of(f"{name}.gain", np.ones(shape, dtype))
        self.bias = Parameter.of(f"{name}.bias", np.zeros(shape, dtype))
        self.parameters = (self.gain, self.bias)
        self._axes = tuple(range(-len(shape), 0))

    def forward(self, x: Array) -> Array:
        """(..., *G) -> (..., *G)."""
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
        """dx is the gradient of the normalised x less its parts along the mean and along the normalised x itself.

        Normalising removes those two directions from x, so no gradient may flow along them.
        """
        leading = tuple(range(dy.ndim - len(self._axes)))
        self.gain.grad[...] = (dy * self._normal).sum(axis=leading)
        self.bias.grad[...] = dy.sum(axis=leading)
        dnormal = dy * self.gain.value
        mean = dnormal.mean(axis=self._axes, keepdims=True)
        along = (dnormal * self._normal).mean(axis=self._axes, keepdims=True)
        dx: Array = (dnormal - mean - self._normal * along) * self._inverse_deviation
        return dx
