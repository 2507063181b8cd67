"""The dense layer: y = x W + b over the last axis.

Legend: D inputs, E outputs; ``...`` any leading axes, N their product.
Shapes: x (..., D), W (D, E), b (E,), y (..., E).
Cost: 2 N D E flops forward and twice that backward, which is where "backward takes two forwards" comes from.
"""

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter


class Dense:
    """A linear map of the last axis; the bias starts at zero.

    >>> Dense("fc", np.ones((3, 2))).forward(np.ones((5, 4, 3))).shape
    (5, 4, 2)
    """

    _rows: Array

    def __init__(self, name: str, weight: Array) -> None:
        if weight.ndim != 2:
            raise ValueError(f"weight of {name} must have shape (inputs, outputs), not {weight.shape}")
        self.weight = Parameter.of(f"{name}.weight", weight)
        self.bias = Parameter.of(f"{name}.bias", np.zeros_like(weight[0]))
        self.parameters = (self.weight, self.bias)

    def forward(self, x: Array) -> Array:
        """(..., D) -> (..., E)."""
        inputs, outputs = self.weight.value.shape
        self._rows = x.reshape(-1, inputs)
        y: Array = self._rows @ self.weight.value + self.bias.value
        return y.reshape(*x.shape[:-1], outputs)

    def backward(self, dy: Array) -> Array:
        """dW = x^T dy and db = sum dy, over all N rows; dx = dy W^T."""
        xp = array_module(dy)
        inputs, outputs = self.weight.value.shape
        rows = dy.reshape(-1, outputs)
        xp.matmul(self._rows.T, rows, out=self.weight.grad)
        xp.sum(rows, axis=0, out=self.bias.grad)
        dx: Array = rows @ self.weight.value.T
        return dx.reshape(*dy.shape[:-1], inputs)
