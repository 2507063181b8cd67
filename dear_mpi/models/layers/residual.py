"""The residual connection: y = x + f(x), where f is a chain of layers that keeps the shape."""

from collections.abc import Sequence

from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Layer


class Residual:
    """Layers around which the input also passes unchanged; to a trainer they are one layer.

    >>> import numpy as np
    >>> from dear_mpi.models.layers import Relu
    >>> Residual([Relu()]).forward(np.array([-1.0, 2.0]))
    array([-1.,  4.])
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)
        self.parameters = tuple(parameter for layer in layers for parameter in layer.parameters)

    def forward(self, x: Array) -> Array:
        """x + f(x)."""
        y = x
        for layer in self._layers:
            y = layer.forward(y)
        return x + y

    def backward(self, dy: Array) -> Array:
        """dy + (gradient of f) dy."""
        dx = dy
        for layer in reversed(self._layers):
            dx = layer.backward(dx)
        return dy + dx
