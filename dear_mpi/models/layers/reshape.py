"""Reshaping: the same numbers under other axes, and their gradients under the old ones again.

Legend: N samples, ``...`` the axes of one sample. Shapes: x (N, ...), y (N, *shape).
"""

from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter


class Reshape:
    """Gives every sample this shape; a shape of one axis makes it a row of features.

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
