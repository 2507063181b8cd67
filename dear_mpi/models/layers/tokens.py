"""Layers for windows of tokens: embedding, and causal multi-head self-attention.

Legend: B windows, T tokens in a window, L the longest window, V vocabulary, D width, H heads, E = D / H.
"""

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Parameter, Split
from dear_mpi.models.layers.any_data import Dense, check_indices


class Embedding:
    """A trained row per token, plus a trained row per position: y[b, t] = tokens[x[b, t]] + positions[t].

    Shapes: x (B, T) integers below V, tokens (V, D), positions (L, D), y (B, T, D).
    Cost: forward only copies. Backward is 2 B T V D flops, as much as a dense head over the same vocabulary.

    >>> layer = Embedding("embedding", tokens=np.ones((9, 4)), positions=np.ones((6, 4)))
    >>> layer.forward(np.zeros((2, 5), int)).shape
    (2, 5, 4)
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
            raise ValueError(f"x must have shape (B, T) with T at most {longest}, not {x.shape}")
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
        nothing: Array = xp.zeros(0, dy.dtype)
        return nothing


class CausalSelfAttention(Split):
    """Each token attends to itself and the tokens before it: x and y (B, T, D).

    One dense layer makes queries, keys and values. In every head a token's output is the average of its visible values,
    weighted by softmax(q k^T / sqrt(E)); a second dense layer mixes the heads. Inside, q, k and v are (B, H, T, E), the
    attention weights (B, H, T, T).

    Cost: 8 B T D^2 flops in the two dense layers and 4 B T^2 D in the average, forward; twice that backward.

    >>> layer = CausalSelfAttention("attention", qkv=np.ones((4, 12)), out=np.ones((4, 4)), heads=2)
    >>> layer.forward(np.ones((2, 5, 4))).shape
    (2, 5, 4)
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
        """(B, T, pieces * D) -> (pieces, B, H, T, E)."""
        batch, tokens, width = x.shape
        return x.reshape(batch, tokens, pieces, self._heads, width // (pieces * self._heads)).transpose(2, 0, 3, 1, 4)

    def _merge(self, x: Array) -> Array:
        """(pieces, B, H, T, E) -> (B, T, pieces * D), the inverse of ``_split``."""
        pieces, batch, heads, tokens, width = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, pieces * heads * width)


def causal_softmax(scores: Array) -> Array:
    """Softmax of (..., T, T) over the last axis, where row t sees columns 0 to t."""
    xp = array_module(scores)
    tokens = scores.shape[-1]
    masked = scores + xp.triu(xp.full((tokens, tokens), -np.inf, scores.dtype), 1)
    # A token always sees itself, so the maximum is finite and every exponential is in [0, 1].
    exponentials = xp.exp(masked - masked.max(axis=-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights
