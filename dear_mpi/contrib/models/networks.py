"""Build a convolutional network and a transformer, each a flat list of layers, for the shape of *one* sample.

- ``cnn``  (H, W) or (C, H, W) -> (classes,): three convolutions, one with stride 2, and a dense head;
- ``gpt``  (T,) integers below V -> (T, V): a decoder-only transformer that predicts the next token everywhere.

>>> len(cnn((8, 8), 10, np.random.default_rng(0), np.dtype(np.float32)))
12
>>> len(gpt((32,), 256, np.random.default_rng(0), np.dtype(np.float32)))
7
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dear_mpi.contrib.models.layers import CausalSelfAttention, Conv2d, Embedding, LayerNorm
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Layer
from dear_mpi.models.layers import Dense, Gelu, Relu, Reshape, Residual
from dear_mpi.models.networks import draw_weight, trains_with


@trains_with(fusion="layers:2")
def cnn(shape: tuple[int, ...], classes: int, rng: np.random.Generator, dtype: np.dtype[Any]) -> list[Layer]:
    """A stride halves the space, not max-pooling: ties have no gradient."""
    if len(shape) not in (2, 3):
        raise ValueError(f"shape of a sample for cnn must be (H, W) or (C, H, W), not {shape}")
    draw = partial(draw_weight, rng, dtype)
    channels, height, width = (1, *shape)[-3:]
    layers: list[Layer] = [Reshape((channels, height, width))]
    for index, (filters, stride) in enumerate([(16, 1), (32, 2), (32, 1)], start=1):
        weight = draw((filters, channels, 3, 3), fan_in=9 * channels, gain=2.0)
        channels, height, width = filters, -(-height // stride), -(-width // stride)
        layers += [
            Conv2d(f"conv{index}", weight, stride=stride, padding=1),
            LayerNorm(f"norm{index}", (channels, height, width), dtype),
            Relu(),
        ]
    features = channels * height * width
    return [*layers, Reshape((features,)), Dense("head", draw((features, classes), fan_in=features), outputs=None)]


@trains_with(text=True, batch=16, iterations=600, fusion="none")
def gpt(shape: tuple[int, ...], classes: int, rng: np.random.Generator, dtype: np.dtype[Any]) -> list[Layer]:
    """Build two pre-norm blocks of width 64 with 4 heads."""
    if len(shape) != 1:
        raise ValueError(f"shape of a sample for gpt must be (T,), a window of tokens, not {shape}")
    draw = partial(draw_weight, rng, dtype)
    width, blocks = 64, 2
    tokens, positions = (draw((rows, width), fan_in=width) for rows in (classes, *shape))
    layers: list[Layer] = [Embedding("embedding", tokens=tokens, positions=positions)]
    for index in range(blocks):
        layers += block(f"block{index}", draw, width=width, branch_gain=0.5 / blocks, dtype=dtype)
    head = Dense("head", draw((width, classes), fan_in=width), outputs=None)
    return [*layers, LayerNorm("norm", (width,), dtype), head]


def block(
    name: str, draw: Callable[..., Array], *, width: int, branch_gain: float, dtype: np.dtype[Any]
) -> list[Layer]:
    """``branch_gain`` divides the unit variance among the residual branches."""
    hidden = 4 * width
    qkv = draw((width, 3 * width), fan_in=width)
    out = draw((width, width), fan_in=width, gain=branch_gain)
    attention = CausalSelfAttention(f"{name}.attention", qkv=qkv, out=out, heads=4)
    expand = Dense(f"{name}.expand", draw((width, hidden), fan_in=width))
    shrink = Dense(f"{name}.shrink", draw((hidden, width), fan_in=hidden, gain=branch_gain))
    return [
        Residual([LayerNorm(f"{name}.norm1", (width,), dtype), attention]),
        Residual([LayerNorm(f"{name}.norm2", (width,), dtype), expand, Gelu(), shrink]),
    ]
