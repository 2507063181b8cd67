"""Layers with hand-written forward and backward, on NumPy or CuPy arrays, and one loss.

Every class is a ``Layer`` (``layer.py``). Four rules hold for all of them:

- the array library is the input's: moving a model to a GPU means moving its parameters;
- the output has the input's dtype: scalars are Python's, which never widen an array;
- samples are independent: ranks may split a batch in any way, with any number of samples, even none;
- gradients are written into ``Parameter.grad``, replacing the last ``backward``'s.

Legend: N samples, D inputs, E outputs, ``...`` any axes, C channels or classes, H x W space, T tokens.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from dear_mpi.kernels.array import Array, array_module, library_of
from dear_mpi.models.layer import Layer, Parameter, Split, is_split

__all__ = ["CausalSelfAttention", "Conv2d", "Dense", "Embedding", "Gelu", "Layer", "LayerNorm", "Parameter"]
__all__ += ["Relu", "Reshape", "Residual", "SoftmaxCrossEntropy"]


class Dense(Split):
    """y = x W + b over the last axis, x (..., D), W (D, E), b (E,), y (..., E); the bias starts at zero.

    Cost: 2 N D E flops forward, with N over all of ``...``, and twice that backward. A model's last layer has
    ``outputs=None``, see ``Parameter``.
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
        """Return inputs and output gradients for K-FAC, a row for each of N, and N."""
        return self._rows, self._dy_rows, len(self._rows)

    def backward_weights(self) -> None:
        """dW = x^T dy and db = sum dy, over all N rows."""
        xp = array_module(self._dy_rows)
        xp.matmul(self._rows.T, self._dy_rows, out=self.weight.grad)
        xp.sum(self._dy_rows, axis=0, out=self.bias.grad)
        del self._dy_rows


class LayerNorm:
    """y = gain * (x - mean) / sqrt(variance + epsilon) + bias, x and y (..., *G), gain and bias G.

    Each sample is normalised separately, over its trailing axes G. There is no batch normalisation: its statistics
    depend on the samples that share a rank, so the number of ranks would change the model.
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


class Relu:
    """y = max(x, 0); the gradient at 0 is taken as 0."""

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
        # Products, not powers: x ** 3 calls pow() for every element, which costs more than all other operations.
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
    """y = x + f(x); f is a chain of layers that keeps the shape. The trainer sees one layer."""

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


# Inside, samples are the last axis, (C, H, W, N): strided slices then copy runs of N elements, not single ones. Both
# conversions are views, so nothing moves between two convolutions.
SAMPLES_LAST, SAMPLES_FIRST = (1, 2, 3, 0), (3, 0, 1, 2)


class Conv2d(Split):
    """A convolution as one matrix product, with square kernels, zero padding and equal strides on both axes.

    ``_unfold`` copies every patch under the kernel into a column; the convolution is W times that matrix. ``_fold``,
    its transpose, adds every column back to its origin, and so carries the gradient.

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
        """dx folds W^T dy."""
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
        return self.weight.value.reshape(len(self.weight.value), -1)


class Embedding:
    """A trained row per token, plus a trained row per position: y[n, t] = tokens[x[n, t]] + positions[t].

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
        """Add each row of dy to its token's row. Tokens have no gradient, so it returns an empty array.

        A look-up is a product with a one-hot matrix, and its gradient the product with the transpose. A scatter-add
        does less work, but on a GPU its atomic additions have no fixed order, so results would vary in their bits.
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

    One dense layer makes queries, keys and values (N, heads, T, D / heads). In each head a token's output averages its
    visible values, weighted by softmax(q k^T / sqrt(D / heads)); a second dense layer mixes the heads.

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
        """Run the products backwards; the softmax's gradient is w * (dw - sum(dw * w))."""
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
    # A token always sees itself, so the maximum is finite and every exponential is in [0, 1].
    exponentials = xp.exp(masked - masked.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


class SoftmaxCrossEntropy:
    """The negative log-likelihood of targets (...), integers below C, by logits (..., C).

    The loss of a target c is -log softmax(z)[c] = log sum exp(z) - z[c], in nats; its gradient is softmax(z) -
    onehot(c). ``forward`` returns a *sum* and ``backward`` takes the *scale*: a mean over local samples is wrong if
    ranks hold unequal parts of a batch. With scale = 1 / (targets in the job's whole batch) on every rank, the sum of
    all ranks' gradients is the gradient of the mean loss.
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
        return -self._log_p[self._targets].sum(dtype=xp.float64)

    def backward(self, scale: float) -> Array:
        """dlogits = (softmax - onehot) * scale, (..., C)."""
        dlogits = array_module(self._log_p).exp(self._log_p)
        dlogits[self._targets] -= 1.0
        dlogits *= scale
        return dlogits.reshape(self._shape)


def check_indices(what: str, x: Array, count: int) -> None:
    """Check that x holds whole numbers from 0 to ``count`` - 1: NumPy would take -1 for the last row.

    Arrays on a GPU are not checked, because the host would wait.
    """
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, not of type {x.dtype}")
    if library_of(x) == "numpy" and x.size and not 0 <= x.min() <= x.max() < count:
        raise ValueError(f"{what} must be from 0 to {count - 1}, not from {x.min()} to {x.max()}")
