"""What the trainer knows of a model: parameters, and layers that go forward and backward.

The trainer never differentiates. A layer may be one of ours, an adapter over another framework, or a synthetic
one that only takes time: it is enough that it has these three members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.launch_tables import address

__all__ = ["Layer", "Loss", "Parameter", "check_untied"]


@dataclass
class Parameter:
    """A tensor that is trained, and the place where its gradient is written.

    ``grad`` has the shape and dtype of ``value``. A bucket rebinds ``grad`` to a view into its buffer where it can, so
    that packing costs nothing; a layer therefore writes *into* it (``grad[...] = g`` or ``out=grad``), never over it.
    """

    name: str
    value: Array
    grad: Array

    @classmethod
    def of(cls, name: str, value: Array) -> Parameter:
        """A parameter with a gradient of zeros of the same shape, dtype and device."""
        return cls(name, value, np.zeros_like(value))


class Layer(Protocol):
    """One stage of a model."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The layer's own parameters, in a fixed order; empty where there is nothing to train."""

    def forward(self, x: Array) -> Array:
        """The layer's output; remembers what ``backward`` needs."""

    def backward(self, dy: Array) -> Array:
        """Write the gradient of every parameter for the last ``forward``; return the gradient of its input."""


class Loss(Protocol):
    """The end of a model."""

    def forward(self, logits: Array, targets: Array) -> Array | float:
        """The sum of the losses of these examples: a number, or an array without axes where the logits are."""

    def backward(self, scale: float) -> Array:
        """The gradient of ``scale`` times that sum."""


def check_untied(layers: Sequence[Layer]) -> None:
    """See that no two parameters share memory: each would be updated with a part of its gradient.

    Raises:
        ValueError: two do; the message names both.
    """
    spans = sorted(
        (address(array), array.nbytes, f"{parameter.name} of layer {number} ({type(layer).__name__})")
        for number, layer in enumerate(layers)
        for parameter in layer.parameters
        for array in (parameter.value, parameter.grad)
        if array.flags.c_contiguous and array.size  # a bucket refuses others
    )
    end, owner = 0, ""
    for start, nbytes, name in spans:
        if start < end:
            raise ValueError(f"{owner} and {name} share memory: tied parameters cannot be trained, give each its own")
        end, owner = start + nbytes, name
