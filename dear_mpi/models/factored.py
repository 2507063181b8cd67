"""Precondition gradients with the inverses of Kronecker factors, for K-FAC.

    forward, backward     unchanged; the layer sees rows of inputs a, and of gradients g
    then                  factors.grad = sums of a^T a and g^T g, reduced with the layer's gradients
                          dW = A^-1 dW G^-1 with the previous iteration's inverses, which are factors.value

A layer's factors are a parameter: schedules, fusion, routes and checkpoints treat it like any other. So factors are
reduced during the backward pass; with a sharded update only their owner inverts them, and the next forward pass gathers
the inverses.

Each rank multiplies its gradients before they are summed. A^-1 x G^-1 is linear in x, and the inverses are equal on all
ranks, so the result equals a multiplication of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.kfac import KFAC, Sides
from dear_mpi.models.layer import Layer, Parameter, Split, SplitLayer
from dear_mpi.models.layers import Residual


class RowsLayer(SplitLayer, Protocol):
    """A layer that multiplies rows of inputs by a weight, and adds a bias.

    The weight is (inputs, outputs), or a convolution kernel, (outputs, ...).
    """

    weight: Parameter
    bias: Parameter

    def rows(self) -> tuple[Array, Array, int]:
        """Return the inputs and output gradients, a row per application of the weight, and their number of targets.

        Call it between the halves of the backward pass.
        """


class Factored(Split):
    """A layer with its factors."""

    def __init__(self, layer: RowsLayer, optimizer: KFAC) -> None:
        self.layer = layer
        inputs, outputs = as_matrix(layer.weight.value).shape
        self.sides = Sides(inputs + 1, outputs)
        values = np.zeros(self.sides.elements, layer.weight.value.dtype)
        self.sides.join(values, np.eye(inputs + 1), np.eye(outputs))
        name = layer.weight.name.rpartition(".")[0] or layer.weight.name
        self.factors = Parameter.of(f"{name}.factors", values, outputs=None)
        self.factors.optimizer = optimizer.inverses(self.sides)
        self.parameters = (*layer.parameters, self.factors)

    def forward(self, x: Array) -> Array:
        return self.layer.forward(x)

    def backward_input(self, dy: Array) -> Array:
        return self.layer.backward_input(dy)

    def backward_weights(self) -> None:
        """Write the layer's gradients, multiplied by the inverses, and its factors."""
        inputs, grads, targets = self.layer.rows()
        inputs = np.hstack([inputs, np.ones((len(inputs), 1), inputs.dtype)])
        self.layer.backward_weights()
        self.sides.join(self.factors.grad, inputs.T @ inputs, grads.T @ grads, len(inputs), targets)
        weight, bias = as_matrix(self.layer.weight.grad), self.layer.bias.grad
        left, right = (each.astype(weight.dtype) for each in self.sides.split(self.factors.value))
        found = left @ np.vstack([weight, bias]) @ right
        weight[...], bias[...] = found[:-1], found[-1]


def as_matrix(weight: Array) -> Array:
    """View a weight as (inputs, outputs)."""
    return weight if weight.ndim == 2 else weight.reshape(len(weight), -1).T


def factored(layers: Sequence[Layer], optimizer: KFAC) -> list[Layer]:
    """Wrap layers that have rows of inputs as ``Factored``, also within a ``Residual``.

    A layer with a frozen or tied weight or bias stays unchanged.

    Raises:
        ValueError: no layer has rows of inputs.
    """
    found = with_factors(layers, optimizer, [id(each) for layer in layers for each in layer.parameters])
    if not any(each.optimizer for layer in found for each in layer.parameters):
        raise ValueError(
            "optimizer KFAC has nothing to do: no layer has a method rows, see dear_mpi/models/factored.py"
        )
    return found


def with_factors(layers: Sequence[Layer], optimizer: KFAC, seen: Sequence[int]) -> list[Layer]:
    found: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Residual):
            found.append(Residual(with_factors(layer.layers, optimizer, seen)))
        else:
            own = all(each.trained and seen.count(id(each)) == 1 for each in layer.parameters)
            has_rows = callable(getattr(layer, "rows", None))
            found.append(Factored(cast(RowsLayer, layer), optimizer) if own and has_rows else layer)
    return found
