"""Unpack a reduced bucket and update the parameters in one pass: the end of every training iteration.

A **rule** is the arithmetic of an optimiser on one block of a tensor. It is a frozen set of hyperparameters, and
keeps its state in *slots*, arrays of the parameter's shape (momentum; the two moments of Adam).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dispatch import kernels_for
from dear_mpi.kernels.pack_plan import PackPlan

__all__ = ["SGD", "Adam", "Rule", "unpack_update"]


class Rule(Protocol):
    """One update step of an optimiser."""

    def __call__(self, value: Array, grad: Array, *slots: Array) -> None:
        """Change ``value`` and ``slots`` in place; ``grad`` is scratch and may be overwritten."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with optional momentum (Sutskever et al. 2013, in the form PyTorch uses).

    With weight decay g += weight_decay * w; with momentum m = momentum * m + g, and the step is m, or
    g + momentum * m where ``nesterov``; then w -= lr * step. Bytes per fp32 element: 12, with momentum 20.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __call__(self, value: Array, grad: Array, *slots: Array) -> None:
        if self.weight_decay:
            grad += self.weight_decay * value
        if self.momentum:
            (velocity,) = slots
            velocity *= self.momentum
            velocity += grad
            if self.nesterov:
                grad += self.momentum * velocity
            else:
                grad = velocity * 1
        grad *= self.lr
        value -= grad


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1); ``iteration`` counts from 1. Bytes per fp32 element: 28."""

    lr: float
    iteration: int
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __call__(self, value: Array, grad: Array, *slots: Array) -> None:
        mean, square = slots
        if self.weight_decay:
            grad += self.weight_decay * value
        mean *= self.beta1
        mean += (1 - self.beta1) * grad
        grad *= grad
        grad *= 1 - self.beta2
        square *= self.beta2
        square += grad
        root = array_module(value).sqrt(square)
        root *= 1 / math.sqrt(1 - self.beta2**self.iteration)
        root += self.epsilon
        value -= self.lr / (1 - self.beta1**self.iteration) * (mean / root)


def unpack_update(
    bucket: Array,
    plan: PackPlan,
    values: Sequence[Array],
    slots: Sequence[Sequence[Array]],
    rule: Rule,
    *,
    scale: float = 1.0,
) -> None:
    """Update ``values[i]`` by ``rule`` with its gradient in ``bucket``, cast and times ``scale``.

    Args:
        bucket: the reduced gradients, flat, laid out by ``plan``; only read.
        values: the parameters, C-contiguous, of the plan's shapes.
        slots: for each parameter, the rule's state arrays, of the parameter's shape; fp32, or fp64 for fp64.
    """
    kernels = kernels_for(bucket)
    for value, grad, state in zip(values, plan.views(bucket), slots, strict=True):
        kernels.update(value, grad, state, rule, scale)
