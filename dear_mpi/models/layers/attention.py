"""Causal multi-head self-attention: each token gathers from itself and the tokens before it.

One dense layer makes queries, keys and values; in every head a token's output is the average of the values it may
see, weighted by softmax(q k^T / sqrt(E)); a second dense layer mixes the heads.

Legend: B windows, T tokens, D width, H heads, E = D / H width of a head.
Shapes: x and y (B, T, D); q, k, v (B, H, T, E); weights of the average (B, H, T, T).
Cost: 8 B T D^2 flops in the two dense layers and 4 B T^2 D in the average, forward; twice that backward.
"""

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layers.dense import Dense


class CausalSelfAttention:
    """Attention over the tokens of a window, blind to the future.

    >>> layer = CausalSelfAttention("attention", qkv=np.ones((4, 12)), out=np.ones((4, 4)), heads=2)
    >>> layer.forward(np.ones((2, 5, 4))).shape
    (2, 5, 4)
    """

    _saved: tuple[Array, Array, Array, Array]

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
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self._split(self._qkv.forward(x), 3)
        weights = causal_softmax(q @ k.swapaxes(-1, -2) * self._scale)
        self._saved = q, k, v, weights
        return self._out.forward(self._merge((weights @ v)[None]))

    def backward(self, dy: Array) -> Array:
        """The same products backwards; the softmax's own gradient is w * (dw - sum(dw * w))."""
        q, k, v, weights = self._saved
        (dmixed,) = self._split(self._out.backward(dy), 1)
        dv = weights.swapaxes(-1, -2) @ dmixed
        dweights = dmixed @ v.swapaxes(-1, -2)
        dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) * self._scale
        dqkv = array_module(dy).stack([dscores @ k, dscores.swapaxes(-1, -2) @ q, dv])
        return self._qkv.backward(self._merge(dqkv))

    def _split(self, x: Array, parts: int) -> Array:
        """(B, T, parts * D) -> (parts, B, H, T, E)."""
        batch, tokens, width = x.shape
        return x.reshape(batch, tokens, parts, self._heads, width // (parts * self._heads)).transpose(2, 0, 3, 1, 4)

    def _merge(self, x: Array) -> Array:
        """(parts, B, H, T, E) -> (B, T, parts * D), the inverse of ``_split``."""
        parts, batch, heads, tokens, width = x.shape
        return x.transpose(1, 3, 0, 2, 4).reshape(batch, tokens, parts * heads * width)


def causal_softmax(scores: Array) -> Array:
    """Softmax of (..., T, T) over the last axis, where row t sees columns 0 to t."""
    xp = array_module(scores)
    tokens = scores.shape[-1]
    future = xp.triu(xp.full((tokens, tokens), -np.inf, scores.dtype), 1)
    masked = scores + future
    # A token always sees itself, so the maximum is finite and every exponential lies in [0, 1].
    exponentials = xp.exp(masked - masked.max(axis=-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights
