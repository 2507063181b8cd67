"""Layers with hand-written forward and backward. The rules of ``dear_mpi/models/layers.py`` hold.

Legend: N samples, D inputs, ``...`` any axes, C channels, H x W space, T tokens.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter, Split
from dear_mpi.models.layers import Dense, check_indices


class LayerNorm:
    """y = gain * (x - mean) / sqrt(variance + epsilon) + bias, x and y (..., *G), gain and bias G.

    Each sample is normalised over its trailing axes G: batch statistics would depend on the number of ranks.
    """

    EPSILON = 1e-5  # keeps a constant sample finite

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
        self._inverse_deviation = 1.0 / xp.sqrt(variance + self.EPSILON)
        self._normal = centred * self._inverse_deviation
        return self._normal * self.gain.value + self.bias.value

    def backward(self, dy: Array) -> Array:
        """Project dx off the mean and off the normalised x: normalising removes these two directions."""
        leading = tuple(range(dy.ndim - len(self._axes)))
        self.gain.grad[...] = (dy * self._normal).sum(axis=leading)
        self.bias.grad[...] = dy.sum(axis=leading)
        dnormal = dy * self.gain.value
        mean = dnormal.mean(axis=self._axes, keepdims=True)
        along = (dnormal * self._normal).mean(axis=self._axes, keepdims=True)
        return (dnormal - mean - self._normal * along) * self._inverse_deviation


# Inside, samples are the last axis, (C, H, W, N): strided slices then copy runs of N elements. Both conversions are
# views.
SAMPLES_LAST, SAMPLES_FIRST = (1, 2, 3, 0), (3, 0, 1, 2)


class Conv2d(Split):
    """A convolution as one matrix product, with square kernels, zero padding and equal strides on both axes.

    ``_unfold`` copies every patch under the kernel into a column; y is W times that matrix. ``_fold``, its transpose,
    adds columns back to their origin.

    Shapes: x (N, C, H, W), weight (F, C, K, K), bias (F,), y (N, F, O, Q) with O = (H + 2 padding - K) // stride + 1
    and Q likewise, columns (C K K, O Q N), which hold K^2 / stride^2 copies of x.
    Cost: 2 N O Q F C K^2 flops forward, twice that backward.
    """

    def __init__(self, name: str, weight: Array, *, stride: int = 1, padding: int = 0) -> None:
        if weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
            raise ValueError(f"weight of {name} must have shape (filters, channels, K, K), not {weight.shape}")
        if stride < 1 or padding < 0:
            raise ValueError(f"stride of {name} must be at least 1 and padding at least 0, not {stride} and {padding}")
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
        self._dy_rows = dy.transpose(SAMPLES_LAST).reshape(dy.shape[1], self._columns.shape[1])
        return self._fold(self._weight_rows().T @ self._dy_rows)

    def rows(self) -> tuple[Array, Array, int]:
        return self._columns.T, self._dy_rows.T, self._x_shape[0]

    def backward_weights(self) -> None:
        """dW = dy columns^T and db = sum dy."""
        self.weight.grad[...] = (self._dy_rows @ self._columns.T).reshape(self.weight.grad.shape)
        self.bias.grad[...] = self._dy_rows.sum(axis=1)
        del self._dy_rows

    def _unfold(self, x: Array) -> Array:
        xp, pad, shape = array_module(x), self._padding, self._patches_shape()
        padded = xp.pad(x.transpose(SAMPLES_LAST), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        patches: Array = xp.empty(shape, x.dtype)
        for row, column, seen in self._taps():
            patches[:, row, column] = padded[seen]
        return patches.reshape(math.prod(shape[:3]), math.prod(shape[3:]))

    def _fold(self, columns: Array) -> Array:
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

        CuPy's sliding window view would make the host wait for the device.
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
        return self.weight.value.reshape(len(self.weight.value), -1)


class Embedding:
    """y[n, t] = tokens[x[n, t]] + positions[t].

    Shapes: x (N, T) integers, tokens (vocabulary, D), positions (longest T, D), y (N, T, D).
    """

    def __init__(self, name: str, *, tokens: Array, positions: Array) -> None:
        widths = tokens.shape[1:], positions.shape[1:]
        if widths[0] != widths[1]:
            raise ValueError(f"positions of {name} must have rows of shape {widths[0]}, not {widths[1]}")
        self.tokens = Parameter.of(f"{name}.tokens", tokens, outputs=None)
        self.positions = Parameter.of(f"{name}.positions", positions, outputs=None)
        self.parameters = (self.tokens, self.positions)

    def forward(self, x: Array) -> Array:
        longest = len(self.positions.value)
        if x.ndim != 2 or x.shape[1] > longest:
            raise ValueError(f"x must have shape (N, T) with T at most {longest}, not {x.shape}")
        check_indices(f"the numbers that {self.tokens.name} is given", x, len(self.tokens.value))
        self._x = x
        return self.tokens.value[x] + self.positions.value[: x.shape[1]]

    def backward(self, dy: Array) -> Array:
        """Add each row of dy to its token's row; return an empty array.

        The product with the transposed one-hot matrix has a fixed order, unlike a scatter-add's atomic additions on a
        GPU.
        """
        xp = array_module(dy)
        vocabulary, width = self.tokens.value.shape
        one_hot = (self._x.reshape(-1) == xp.arange(vocabulary)[:, None]).astype(dy.dtype)
        xp.matmul(one_hot, dy.reshape(-1, width), out=self.tokens.grad)
        window = dy.shape[1]
        self.positions.grad[:window] = dy.sum(axis=0)
        self.positions.grad[window:] = 0
        return xp.zeros(0, dy.dtype)


class CausalSelfAttention(Split):
    """Each token attends to itself and the tokens before it: x and y (N, T, D).

    A head averages visible values, weighted by softmax(q k^T / sqrt(D / heads)); a dense layer mixes heads.

    Cost: 8 N T D^2 flops in the two dense layers and 4 N T^2 D in the average, forward; twice that backward.
    """

    def __init__(self, name: str, *, qkv: Array, out: Array, heads: int) -> None:
        width = len(out)
        if heads < 1 or width % heads:
            raise ValueError(f"heads of {name} must divide the width {width}, not be {heads}")
        if qkv.shape != (width, 3 * width):
            raise ValueError(f"qkv of {name} must have shape {(width, 3 * width)}, not {qkv.shape}")
        self._qkv, self._out = Dense(f"{name}.qkv", qkv), Dense(f"{name}.out", out)
        self.parameters = (*self._qkv.parameters, *self._out.parameters)
        self._heads = heads
        self._scale = (width // heads) ** -0.5

    def forward(self, x: Array) -> Array:
        q, k, v = self._split(self._qkv.forward(x), 3)
        weights = causal_softmax(q @ k.swapaxes(-1, -2) * self._scale)
        self._saved = q, k, v, weights
        return self._out.forward(self._merge((weights @ v)[None]))

    def backward_input(self, dy: Array) -> Array:
        """The softmax's gradient is w * (dw - sum(dw * w))."""
        q, k, v, weights = self._saved
        (dmixed,) = self._split(self._out.backward_input(dy), 1)
        dv = weights.swapaxes(-1, -2) @ dmixed
        dweights = dmixed @ v.swapaxes(-1, -2)
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) * self._scale
        dqkv = array_module(dy).stack([dscores @ k, dscores.swapaxes(-1, -2) @ q, dv])
        return self._qkv.backward_input(self._merge(dqkv))

    def backward_weights(self) -> None:
        self._out.backward_weights()
        self._qkv.backward_weights()

    def _split(self, x: Array, pieces: int) -> Array:
        """(N, T, pieces * D) -> (pieces, N, heads, T, D / heads)."""
        width = x.shape[-1] // (pieces * self._heads)
        return x.reshape(*x.shape[:2], pieces, self._heads, width).transpose(2, 0, 3, 1, 4)

    def _merge(self, x: Array) -> Array:
        pieces, batch, heads, tokens, width = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, pieces * heads * width)


def causal_softmax(scores: Array) -> Array:
    """Softmax of (..., T, T) over the last axis, where row t sees columns 0 to t."""
    xp = array_module(scores)
    tokens = scores.shape[-1]
    masked = scores + xp.triu(xp.full((tokens, tokens), -np.inf, scores.dtype), 1)
    # A token sees itself: the maximum is finite, exponentials are in [0, 1].
    exponentials = xp.exp(masked - masked.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
