"""Compute K-FAC's Kronecker factors and their inverses, and multiply gradients by them.

    inputs  a, a row for each sample, with a 1 for the bias       A = mean of a^T a     (I, I)
    outputs g, the gradients of one sample's loss                 G = mean of g^T g     (O, O)
    factors   | triangle of A | triangle of G | rows | targets |   of one rank: sums, which add up over ranks
    inverses  | triangle      | triangle      |      |         |   in the same places: (A + pi d)^-1, (G + d / pi)^-1

A layer's factors are a parameter for schedules, routes, owners and checkpoints: ``grad`` has the sums, ``value`` the
inverses, and its own optimizer inverts. Batches may be unequal. Layers receive gradients of the mean loss, g / targets,
so G is targets times the sum of their squares.

Each rank multiplies its gradients by the last iteration's inverses before they are summed: the product is linear.

Source: Martens and Grosse 2015, sections 3 and 6.3 (pi); triangles as in SPD-KFAC (Shi, Zhang and Li 2021,
arXiv 2107.06533).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizers import CALL_COST, Optimizer
from dear_mpi.models.layer import Layer, Parameter, Split
from dear_mpi.models.layers import Residual
from dear_mpi.models.synthetic import Module
from dear_mpi.training.events.profile import Profile, Tensor, Use

PACK_COST, INVERSE_COST = 40, 0.05  # in elements of an update, times size^2 and size^3; of one core


def triangle(size: int) -> int:
    return size * (size + 1) // 2


def packed(matrix: Array) -> Array:
    return matrix[np.tril_indices(len(matrix))]


def unpacked(elements: Array, size: int) -> Array:
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = elements
    return matrix + np.tril(matrix, -1).T


@dataclass(frozen=True)
class Sides:
    """
    >>> sides = Sides(2, 1)
    >>> sides.elements, sides.split(np.arange(6.0))[0].tolist()
    (6, [[0.0, 1.0], [1.0, 2.0]])
    """

    inputs: int
    outputs: int

    @property
    def border(self) -> int:
        return triangle(self.inputs)

    @property
    def elements(self) -> int:
        return self.border + triangle(self.outputs) + 2

    @property
    def cost(self) -> int:
        """In the unit of ``Optimizer.cost``."""
        work = sum(PACK_COST * size**2 + INVERSE_COST * size**3 for size in (self.inputs, self.outputs))
        return CALL_COST + round(work)

    def split(self, array: Array) -> tuple[Array, Array]:
        return unpacked(array[: self.border], self.inputs), unpacked(array[self.border : -2], self.outputs)

    def join(self, into: Array, inputs: Array, outputs: Array, rows: float = 0, targets: float = 0) -> None:
        into[: self.border], into[self.border : -2] = packed(inputs), packed(outputs)
        into[-2:] = rows, targets


@dataclass(frozen=True)
class Inverses(Optimizer):
    """Invert the running means of factors: the optimizer of the parameter that holds the inverses.

    The first factors start each mean. The root of the damping counts pi times for A and 1 / pi times for G, where pi^2
    is the ratio of mean eigenvalues.

    >>> value, state, sides = np.zeros(6), [np.zeros(6)], Sides(2, 1)
    >>> Inverses(1.0, 2, 1, damping=0.25).update(1, value, np.array([4.0, 0, 4, 0.5, 1, 2]), state)
    >>> state[0][:4].tolist(), [matrix.round(3).tolist() for matrix in sides.split(value)]
    ([4.0, 0.0, 4.0, 1.0], [[[0.2, 0.0], [0.0, 0.2]], [[0.8]]])
    """

    inputs: int = 0  # rows of A and of G
    outputs: int = 0
    damping: float = 0.03
    keep: float = 0.9

    scope: ClassVar[str] = "tensor"
    state_arrays = 1

    @property
    def sides(self) -> Sides:
        return Sides(self.inputs, self.outputs)

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        sides, mean = self.sides, state[0]
        rows, targets = grad[-2:]
        grad[: sides.border] /= max(rows, 1)
        grad[sides.border : -2] *= targets
        keep = 0.0 if iteration == 1 else self.keep
        mean *= keep
        mean += (1 - keep) * grad
        inputs, outputs = sides.split(mean)
        eigenvalues = [max(float(np.trace(each)) / len(each), 0.0) for each in (inputs, outputs)]
        pi = math.sqrt(eigenvalues[0] / eigenvalues[1]) if min(eigenvalues) > 0 else 1.0
        root = math.sqrt(self.damping)
        sides.join(value, inverse(inputs, pi * root), inverse(outputs, root / pi))

    def cost(self, shape: tuple[int, ...]) -> int:
        return self.sides.cost


def inverse(matrix: Array, damping: float) -> Array:
    try:
        return np.asarray(np.linalg.inv(matrix + damping * np.eye(len(matrix))))
    except np.linalg.LinAlgError:  # not finite, or too large for the damping
        return np.full_like(matrix, np.nan)  # training then ends


@dataclass(frozen=True)
class KFAC(Optimizer):
    """Momentum on gradients that layers have multiplied by inverse factors.

    m = momentum * m + g; w -= lr * m; weight decay is decoupled. Parameters without factors use plain gradients.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    damping: float = 0.1
    factor_decay: float = 0.9

    scope: ClassVar[str] = "tensor"
    gradients_alone: ClassVar[bool] = False
    state_arrays = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping:
            raise ValueError("damping must be above zero, not 0: a factor of few samples has no inverse")
        if self.factor_decay >= 1:
            raise ValueError(f"factor_decay must be below 1, not {self.factor_decay}")

    def inverses(self, sides: Sides) -> Inverses:
        return Inverses(self.lr, sides.inputs, sides.outputs, self.damping, self.factor_decay)

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        (velocity,) = state
        value *= 1 - self.lr * self.weight_decay
        velocity *= self.momentum
        velocity += grad
        value -= np.multiply(velocity, self.lr, out=grad)

    def adapted(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        """Wrap layers that have rows of inputs as ``Factored``, also within a ``Residual``.

        Frozen or tied weights or biases leave a layer unchanged. ValueError: no layer has rows.
        """
        found = with_factors(layers, self, [id(each) for layer in layers for each in layer.parameters])
        if not any(each.optimizer for layer in found for each in layer.parameters):
            what = "no layer has a method rows, see dear_mpi/contrib/kfac/kfac.py"
            raise ValueError(f"optimizer KFAC has nothing to do: {what}")
        return found

    def profiled(self, profile: Profile, modules: Sequence[Module]) -> Profile:
        """Add factors: their sums and the products are part of a layer's backward pass.

        All FLOPs count at the rate of the forward pass, for each part of a batch.
        """
        ahead_s, elements = sum(use.forward_s for use in profile.uses), sum(sum(each.counts) for each in modules)
        flop_s, update_flops = ahead_s / (sum(module.flops for module in modules) or 1.0), 0.0
        keys, uses = count(elements), list[Use]()  # above other tensors' keys
        for use, module in zip(profile.uses, modules, strict=True):
            size = matrix_of(module)
            if size is None:
                uses.append(use)
                continue
            (inputs, outputs), rows = size, module.out_elems / size[1]
            sides = Sides(inputs, outputs)
            flops = 2.0 * (rows * (inputs**2 + outputs**2) + inputs * outputs * (inputs + outputs))
            update_flops += 2.0 * (inputs**3 + outputs**3)
            elements += sides.elements
            tensors = (*use.tensors, Tensor(next(keys), (sides.elements,), None, sides.cost))
            back_s, weights_s = (each + flop_s * flops for each in (use.backward_s, use.weights_s))
            uses.append(replace(use, tensors=tensors, backward_s=back_s, weights_s=weights_s))
        update_s = flop_s / profile.accumulate * update_flops / elements
        return replace(profile, uses=tuple(uses), update_s_per_element=update_s)


def matrix_of(module: Module) -> tuple[int, int] | None:
    """Return inputs, with the bias, and outputs of a module's weight; None if it is no matrix, or lacks ``out_elems``.

    An element takes two FLOPs per row of outputs.
    """
    if not module.counts or not module.flops or not module.out_elems:
        return None
    weight, outputs = module.counts[0], 2.0 * module.counts[0] * module.out_elems / module.flops
    if outputs < 1 or outputs != int(outputs) or weight % int(outputs):
        return None
    return weight // int(outputs) + len(module.counts) - 1, int(outputs)


class Factored(Split):
    """A layer with its factors.

    Its ``rows``, called between the halves of the backward pass, returns inputs and output gradients, a row per
    application of the weight, and the number of targets.
    """

    def __init__(self, layer: Any, optimizer: KFAC) -> None:
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
        inputs, grads, targets = self.layer.rows()
        inputs = np.hstack([inputs, np.ones((len(inputs), 1), inputs.dtype)])
        self.layer.backward_weights()
        self.sides.join(self.factors.grad, inputs.T @ inputs, grads.T @ grads, len(inputs), targets)
        weight, bias = as_matrix(self.layer.weight.grad), self.layer.bias.grad
        left, right = (each.astype(weight.dtype) for each in self.sides.split(self.factors.value))
        found = left @ np.vstack([weight, bias]) @ right
        weight[...], bias[...] = found[:-1], found[-1]


def as_matrix(weight: Array) -> Array:
    """View a weight, (inputs, outputs) or a convolution kernel, (outputs, ...), as (inputs, outputs)."""
    return weight if weight.ndim == 2 else weight.reshape(len(weight), -1).T


def with_factors(layers: Sequence[Layer], optimizer: KFAC, seen: Sequence[int]) -> list[Layer]:
    found: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Residual):
            found.append(Residual(with_factors(layer.layers, optimizer, seen)))
        else:
            own = all(each.trained and seen.count(id(each)) == 1 for each in layer.parameters)
            has_rows = callable(getattr(layer, "rows", None))
            found.append(Factored(layer, optimizer) if own and has_rows else layer)
    return found
