"""Two-dimensional convolution as one matrix product (im2col).

``unfold`` copies every patch under the kernel into a column; the convolution is W times that matrix, at the speed of a
matrix product. ``fold`` is its exact transpose: it adds every column back to its origin, and so carries the gradient.

Legend: N samples, C channels in, F filters (channels out), H x W space, K kernel width, P padding, S stride,
        O x Q space of the output, O = (H + 2P - K) // S + 1 and Q likewise from W.
Shapes: x (N, C, H, W), weight (F, C, K, K), bias (F,), y (N, F, O, Q), columns (C K K, O Q N).
Cost: 2 N O Q F C K^2 flops forward, twice that backward. The columns hold K^2 / S^2 copies of x: the price of im2col.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter, Split

# Inside, samples are the last axis, (C, H, W, N): strided slices then copy runs of N elements, not single ones. Both
# conversions are views, so nothing moves between two convolutions.
SAMPLES_LAST, SAMPLES_FIRST = (1, 2, 3, 0), (3, 0, 1, 2)


class Conv2d(Split):
    """A convolution with square kernels, zero padding and equal strides on both axes; the bias starts at zero.

    >>> Conv2d("conv", np.ones((6, 3, 3, 3)), stride=2, padding=1).forward(np.ones((4, 3, 8, 7))).shape
    (4, 6, 4, 4)
    """

    def __init__(self, name: str, weight: Array, *, stride: int = 1, padding: int = 0) -> None:
        if weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
            raise ValueError(f"weight of {name} must have shape (filters, channels, K, K), not {weight.shape}")
        if stride < 1:
            raise ValueError(f"stride of {name} must be at least 1, not {stride}")
        if padding < 0:
            raise ValueError(f"padding of {name} must be at least 0, not {padding}")
        self.weight = Parameter.of(f"{name}.weight", weight)
        self.bias = Parameter.of(f"{name}.bias", np.zeros_like(weight[:, 0, 0, 0]))
        self.parameters = (self.weight, self.bias)
        self._stride, self._padding = stride, padding

    def forward(self, x: Array) -> Array:
        filters, channels, kernel, _ = self.weight.value.shape
        smallest = kernel - 2 * self._padding
        if x.ndim != 4 or x.shape[1] != channels or min(x.shape[2:]) < smallest:
            allowed = f"(N, {channels}, H, W) with H and W at least {smallest}"
            raise ValueError(f"x must have shape {allowed} to meet {self.weight.name}, not {x.shape}")
        self._x_shape = x.shape
        self._columns = self._unfold(x)
        y = self._weight_rows() @ self._columns + self.bias.value[:, None]
        return y.reshape(filters, *self._patches_shape()[3:]).transpose(SAMPLES_FIRST)

    def backward_input(self, dy: Array) -> Array:
        """dx folds W^T dy."""
        self._dy_rows = dy.transpose(SAMPLES_LAST).reshape(dy.shape[1], self._columns.shape[1])
        return self._fold(self._weight_rows().T @ self._dy_rows)

    def rows(self) -> tuple[Array, Array, int]:
        """Return inputs, output gradients and the number of targets, for ``contrib/kfac``."""
        return self._columns.T, self._dy_rows.T, self._x_shape[0]

    def backward_weights(self) -> None:
        """dW = dy columns^T and db = sum dy."""
        self.weight.grad[...] = (self._dy_rows @ self._columns.T).reshape(self.weight.grad.shape)
        self.bias.grad[...] = self._dy_rows.sum(axis=1)
        del self._dy_rows

    def _unfold(self, x: Array) -> Array:
        """Copy every patch of x into a column: (N, C, H, W) -> (C K K, O Q N)."""
        xp, pad, shape = array_module(x), self._padding, self._patches_shape()
        padded = xp.pad(x.transpose(SAMPLES_LAST), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        patches: Array = xp.empty(shape, x.dtype)
        for row, column, seen in self._taps():
            patches[:, row, column] = padded[seen]
        return patches.reshape(math.prod(shape[:3]), math.prod(shape[3:]))

    def _fold(self, columns: Array) -> Array:
        """Add columns up at their origins in x: (C K K, O Q N) -> (N, C, H, W)."""
        pad = self._padding
        samples, channels, height, width = self._x_shape
        patches = columns.reshape(self._patches_shape())
        padded_shape = (channels, height + 2 * pad, width + 2 * pad, samples)
        padded: Array = array_module(columns).zeros(padded_shape, columns.dtype)
        for row, column, seen in self._taps():
            padded[seen] += patches[:, row, column]
        return padded[:, pad : pad + height, pad : pad + width].transpose(SAMPLES_FIRST)

    def _taps(self) -> Iterator[tuple[int, int, tuple[slice, slice, slice]]]:
        """Yield each kernel position with its view of the padded x (C, H, W, N).

        Plain slices, not a sliding window view: CuPy's makes the host wait for the device.
        """
        stride = self._stride
        _, kernel, _, height, width, _ = self._patches_shape()
        for row, column in product(range(kernel), repeat=2):
            rows = slice(row, row + stride * height, stride)
            columns = slice(column, column + stride * width, stride)
            yield row, column, (slice(None), rows, columns)

    def _patches_shape(self) -> tuple[int, ...]:
        """(C, K, K, O, Q, N)."""
        kernel = self.weight.value.shape[2]
        space = ((extent + 2 * self._padding - kernel) // self._stride + 1 for extent in self._x_shape[2:])
        return (*self.weight.value.shape[1:], *space, self._x_shape[0])

    def _weight_rows(self) -> Array:
        """The weight with a row per filter, (F, C K K)."""
        return self.weight.value.reshape(len(self.weight.value), -1)
