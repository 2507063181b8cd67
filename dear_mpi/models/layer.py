"""Define the trainer's view of a model: parameters, and layers with forward and backward.

The trainer never differentiates: a layer may adapt another framework, or only take time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.optimizers import Optimizer


@dataclass(eq=False)
class Parameter:
    """A tensor of a layer, and the place for its gradient, of the same shape and dtype.

    When training begins, both become views into the flat buffer. So read ``parameter.value`` each time, and write
    *into* the gradient (``grad[...] = g``). Layers are **tied** if they share a parameter or its memory.

    Attributes:
        trained: a frozen parameter never changes; its gradient is ignored.
        rebind: whether it may become a view. Otherwise gradient and value are copied in each iteration, and it must
            not be tied.
        outputs: the axis of outputs, for optimisers of matrices: 0 as in torch, 1 if a layer computes x @ value; None
            for a vector, as for embeddings and output layers.
        optimizer: replaces the session's; it then sees whole tensors.
    """

    name: str
    value: Array
    grad: Array
    trained: bool = True
    rebind: bool = True
    buffer: Any = field(default=None, repr=False)  # its session's flat buffer, weakly
    outputs: int | None = 0
    optimizer: Optimizer | None = None

    @classmethod
    def of(cls, name: str, value: Array, *, outputs: int | None = 0) -> Parameter:
        return cls(name, value, np.zeros_like(value), outputs=outputs)

    def cost(self, optimizer: Optimizer) -> int:
        """Return an update's cost under the session's ``optimizer``."""
        return (self.optimizer or optimizer).cost(self.outputs_first(self.value).shape)

    def outputs_first(self, array: Array) -> Array:
        """View as optimisers of whole tensors expect: outputs first."""
        if self.outputs is None:
            return array.reshape(-1)
        return array_module(array).moveaxis(array, self.outputs, 0) if self.outputs else array


class Layer(Protocol):
    @property
    def parameters(self) -> Sequence[Parameter]:
        """In a fixed order."""

    def forward(self, x: Array) -> Array:
        """Return the output, and keep what ``backward`` needs."""

    def backward(self, dy: Array) -> Array:
        """Write every parameter's gradient for the last ``forward``; return the input's gradient."""


class SplitLayer(Layer, Protocol):
    """A layer with a backward pass in two halves; a schedule may delay the second one (``delays_weights``).

    ``backward(dy)`` equals ``backward_input(dy)``, then ``backward_weights()``, bit for bit.
    """

    def backward_input(self, dy: Array) -> Array:
        """Return the input's gradient; keep what the second half needs."""

    def backward_weights(self) -> None:
        """Write missing parameter gradients, once per ``backward_input``."""


class Split:
    """Run one half after the other."""

    def backward(self: SplitLayer, dy: Array) -> Array:
        dx = self.backward_input(dy)
        self.backward_weights()
        return dx


class ExchangingLayer(Layer, Protocol):
    """A layer that communicates before each pass, as in a mixture of experts: all ranks equally often, in one order.

    The engine's thread calls it between the schedule's collectives: it may use the session's transport.
    """

    def exchange_forward(self, x: Array) -> Array:
        """Send and receive; return the argument of ``forward``."""

    def exchange_backward(self, dy: Array) -> Array:
        """Send and receive; return the argument of ``backward``."""


class Loss(Protocol):
    def forward(self, logits: Array, targets: Array) -> Array | float:
        """Return the sum of these examples' losses: a number, or an array without axes on the logits' device."""

    def backward(self, scale: float) -> Array:
        """Return the gradient of ``scale`` times that sum."""


class NoLoss:
    """A loss of zero, of layers that only take time."""

    def forward(self, logits: Array, targets: Array) -> float:
        return 0.0

    def backward(self, scale: float) -> Array:
        return np.zeros(0)


def in_order(layers: Sequence[Layer], calls: Sequence[int] | None = None) -> list[Layer]:
    """Return layers in execution order; a repeated layer is a copy with shared parameters.

    ValueError: ``calls`` names a layer that does not exist.
    """
    found: list[Layer] = []
    for number in range(len(layers)) if calls is None else calls:
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < len(layers):
            raise ValueError(f"calls must be of numbers below {len(layers)}, the layers of the model, not {number}")
        layer = layers[number]
        seen = any(layer is other for other in found)
        found.append(copy.deepcopy(layer, {id(each): each for each in layer.parameters}) if seen else layer)
    return found


def is_split(layer: Layer) -> TypeGuard[SplitLayer]:
    """Return whether a layer has both halves of a backward pass; ValueError: only one.

    A class that only overrides ``backward`` of its base is not split.
    """
    halves = "backward_input", "backward_weights"
    return has_pair(layer, *halves) and all(depth(layer, "backward") >= depth(layer, half) for half in halves)


def is_exchanging(layer: Layer) -> TypeGuard[ExchangingLayer]:
    """Return whether a layer communicates before each pass; ValueError: before only one."""
    return has_pair(layer, "exchange_forward", "exchange_backward")


def has_pair(layer: Layer, *pair: str) -> bool:
    found = [name for name in pair if callable(getattr(layer, name, None))]
    if len(found) == 1:
        raise ValueError(f"{type(layer).__name__} has only the method {found[0]}: {' and '.join(pair)} are a pair")
    return bool(found)


def depth(layer: Layer, method: str) -> int:
    """Return the definition's distance: 0 for the layer, 1 for its class, then bases."""
    owners = [getattr(layer, "__dict__", {}), *map(vars, type(layer).__mro__)]
    return next((place for place, own in enumerate(owners) if method in own), len(owners))


def layer_name(layer: Layer, number: int) -> str:
    """Return two-part parameter names' common prefix, as of conv1.weight; else type and number."""
    prefix = layer.parameters[0].name.rpartition(".")[0] if layer.parameters else ""
    return prefix or f"{type(layer).__name__} {number}"
