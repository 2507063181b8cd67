"""Activations: functions of one element, without parameters. Any shape in, the same shape out."""

import math

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter

# The constants of the tanh form (Hendrycks and Gimpel 2016, section 2).
A = math.sqrt(2.0 / math.pi)
B = 0.044715


class Relu:
    """y = max(x, 0); the gradient at 0 is taken as 0.

    >>> import numpy as np
    >>> Relu().forward(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    parameters: tuple[Parameter, ...] = ()
    _positive: Array

    def forward(self, x: Array) -> Array:
        """Pass what is positive."""
        self._positive = x > 0
        y: Array = array_module(x).maximum(x, 0.0)
        return y

    def backward(self, dy: Array) -> Array:
        """Pass the gradient where forward passed x."""
        dx: Array = dy * self._positive
        return dx


class Gelu:
    """y = x/2 (1 + tanh(a (x + b x^3))): the tanh form, smooth everywhere.

    >>> import numpy as np
    >>> Gelu().forward(np.array([-1.0, 2.0])).round(3)
    array([-0.159,  1.955])
    """

    parameters: tuple[Parameter, ...] = ()
    _x: Array
    _tanh: Array

    def forward(self, x: Array) -> Array:
        """Pass x weighted by a smooth step."""
        # Products, not powers: x ** 3 calls pow() for every element and costs more than the rest together.
        self._x = x
        self._tanh = array_module(x).tanh(A * (x + B * (x * x * x)))
        y: Array = 0.5 * x * (1.0 + self._tanh)
        return y

    def backward(self, dy: Array) -> Array:
        """The product rule, with tanh' = 1 - tanh^2."""
        x, tanh = self._x, self._tanh
        slope = A * (1.0 + 3.0 * B * (x * x))
        dx: Array = dy * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        return dx
