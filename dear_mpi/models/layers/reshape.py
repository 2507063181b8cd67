"""Reshaping: the same numbers under other axes, and their gradients under the old ones again.

Legend: N samples, ``...`` the axes of one sample, D their product. Shapes: x (N, ...), y (N, *shape) or (N, D).
"""

from __future__ import annotations

import math

from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter

__all__ = ["Flatten", "Reshape"]


class Reshape:
    """Gives every sample this shape.

    >>> import numpy as np
    >>> Reshape((1, 8, 8)).forward(np.ones((5, 64))).shape
    (5, 1, 8, 8)
    """

    parameters: tuple[Parameter, ...] = ()
    _x_shape: tuple[int, ...]

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def forward(self, x: Array) -> Array:
        """(N, ...) -> (N, *shape)."""
        self._x_shape = x.shape
        return x.reshape(len(x), *self._shape)

    def backward(self, dy: Array) -> Array:
        """(N, *shape) -> (N, ...)."""
        return dy.reshape(self._x_shape)


class Flatten:
    """Makes every sample one row of features.

    >>> import numpy as np
    >>> Flatten().forward(np.ones((0, 8, 8))).shape
    (0, 64)
    """

    parameters: tuple[Parameter, ...] = ()
    _x_shape: tuple[int, ...]

    def forward(self, x: Array) -> Array:
        """(N, ...) -> (N, D)."""
        self._x_shape = x.shape
        # The product is spelled out because -1 is ambiguous when N is 0.
        return x.reshape(len(x), math.prod(x.shape[1:]))

    def backward(self, dy: Array) -> Array:
        """(N, D) -> (N, ...)."""
        return dy.reshape(self._x_shape)
