"""What the trainer knows of a model: parameters, and layers that go forward and backward.

The trainer never differentiates. A layer may be one of ours, an adapter over another framework, or a synthetic
one that only takes time: it is enough that it has the three members of ``Layer``. What else a layer can do comes in
pairs of methods, of which it has both or neither:

    backward_input, backward_weights       the halves of its backward pass: the second one may wait
    exchange_forward, exchange_backward    what it sends and awaits before a pass, as a mixture of experts does
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.optimizer import Optimizer


@dataclass(eq=False)
class Parameter:
    """A tensor of a layer, and the place where its gradient is written.

    ``grad`` has the shape and dtype of ``value``. When training begins both become views into the memory of the line:
    a gradient is then where it travels from, and an update is one pass. A layer therefore reads ``parameter.value``
    each time, and writes *into* the gradient (``grad[...] = g`` or ``out=grad``), never over it. Layers are **tied** by
    having the same parameter, or parameters of the same memory.

    Attributes:
        trained: whether it is; a frozen one is never changed, and its gradient not looked at.
        rebind: whether it may become a view. Otherwise it stays in its own contiguous memory, at the price of a copy of
            the gradient and of the value in each iteration. It must not be tied then.
        outputs: the axis of the outputs, for optimisers that look at matrices: 0 as in torch and in kernels, 1 where a
            layer computes x @ value; None for what they are to treat as a vector, as embeddings and output layers.
        optimizer: what makes its values new in the place of the session's optimiser, which looks at whole tensors then.
    """

    name: str
    value: Array
    grad: Array
    trained: bool = True
    rebind: bool = True
    line: Any = field(default=None, repr=False)  # of the session that trains it, weakly
    outputs: int | None = 0
    optimizer: Optimizer | None = None

    @classmethod
    def of(cls, name: str, value: Array, *, outputs: int | None = 0) -> Parameter:
        """A parameter with a gradient of zeros of the same shape, dtype and device."""
        return cls(name, value, np.zeros_like(value), outputs=outputs)

    def cost(self, optimizer: Optimizer) -> int:
        """What an update of it takes, where this is the session's optimiser."""
        return (self.optimizer or optimizer).cost(self.outputs_first(self.value).shape)

    def outputs_first(self, array: Array) -> Array:
        """An array of its shape, as optimisers of whole tensors are given it: a view of the same memory."""
        if self.outputs is None:
            return array.reshape(-1)
        found: Array = array_module(array).moveaxis(array, self.outputs, 0) if self.outputs else array
        return found


class Layer(Protocol):
    """One stage of a model."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The layer's own parameters, in a fixed order; empty where there is nothing to train."""

    def forward(self, x: Array) -> Array:
        """The layer's output; remembers what ``backward`` needs."""

    def backward(self, dy: Array) -> Array:
        """Write the gradient of every parameter for the last ``forward``; return the gradient of its input."""


class SplitLayer(Layer, Protocol):
    """A layer whose backward pass has two halves; a schedule may let the second one wait (``delays_weights``).

    ``backward(dy)`` gives the bits of ``backward_input(dy)`` and then ``backward_weights()``. Between them the layer
    keeps what the second half needs: its input, and ``dy``.
    """

    def backward_input(self, dy: Array) -> Array:
        """Return the gradient of the input, for the last ``forward``."""

    def backward_weights(self) -> None:
        """Write what is missing of the gradients of the parameters, once for each ``backward_input``."""


class Split:
    """The ``backward`` of a split layer: one half after the other."""

    def backward(self: SplitLayer, dy: Array) -> Array:
        dx = self.backward_input(dy)
        self.backward_weights()
        return dx


class ExchangingLayer(Layer, Protocol):
    """A layer that communicates before each pass, and goes on with what has come: an all-to-all, for example.

    The engine's thread does it, between the collectives of the schedule, while compute waits: so it may use the
    session's transport. All ranks exchange equally often, in the same order.
    """

    def exchange_forward(self, x: Array) -> Array:
        """Send and receive; return what ``forward`` is called with."""

    def exchange_backward(self, dy: Array) -> Array:
        """The same with what ``backward`` is called with."""


class Loss(Protocol):
    """The end of a model."""

    def forward(self, logits: Array, targets: Array) -> Array | float:
        """The sum of the losses of these examples: a number, or an array without axes where the logits are."""

    def backward(self, scale: float) -> Array:
        """The gradient of ``scale`` times that sum."""


def in_order(layers: Sequence[Layer], uses: Sequence[int] | None = None) -> list[Layer]:
    """The layers as they run; where one runs again it is a copy, which has the same parameters and its own memory.

    ValueError if ``uses`` names a layer that does not exist.
    """
    found: list[Layer] = []
    for number in range(len(layers)) if uses is None else uses:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < len(layers):
            raise ValueError(f"uses must be of numbers below {len(layers)}, the layers of the model, not {number}")
        layer = layers[number]
        seen = any(layer is other for other in found)
        found.append(copy.deepcopy(layer, {id(each): each for each in layer.parameters}) if seen else layer)
    return found


def is_split(layer: Layer) -> TypeGuard[SplitLayer]:
    """Whether its backward pass has two halves; ValueError if one of them is missing.

    A class that only has another ``backward`` than the class that it is derived from is not split.
    """
    halves = "backward_input", "backward_weights"
    return has_pair(layer, *halves) and all(depth(layer, "backward") >= depth(layer, half) for half in halves)


def is_exchanging(layer: Layer) -> TypeGuard[ExchangingLayer]:
    """Whether it communicates before each pass; ValueError if it does so before one pass alone."""
    return has_pair(layer, "exchange_forward", "exchange_backward")


def has_pair(layer: Layer, *pair: str) -> bool:
    found = [name for name in pair if callable(getattr(layer, name, None))]
    if len(found) == 1:
        raise ValueError(f"{type(layer).__name__} has the method {found[0]} alone: {' and '.join(pair)} are a pair")
    return bool(found)


def depth(layer: Layer, method: str) -> int:
    """Where a layer has a method from: 0 for itself, 1 for its class, then what that is derived from."""
    owners = [getattr(layer, "__dict__", {}), *map(vars, type(layer).__mro__)]
    return next((place for place, own in enumerate(owners) if method in own), len(owners))


def layer_name(layer: Layer, number: int) -> str:
    """What its parameters' names begin with, if they have two parts, such as conv1.weight; else its type and number."""
    prefix = layer.parameters[0].name.rpartition(".")[0] if layer.parameters else ""
    return prefix or f"{type(layer).__name__} {number}"
