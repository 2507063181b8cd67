"""The arithmetic of optimisers on one block of a tensor: the last line of training.

A **rule** is a frozen set of hyperparameters with its formula. It keeps its state in *slots*, arrays of the
parameter's shape (momentum; the two moments of Adam). A backend that fuses a rule into a kernel of its own chooses
that kernel by the rule's type; the formula here is the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dear_mpi.kernels.array import Array, array_module

__all__ = ["SGD", "Adam", "Rule"]


class Rule(Protocol):
    """One update step of an optimiser."""

    def __call__(self, value: Array, grad: Array, *slots: Array) -> None:
        """Change ``value`` and ``slots`` in place; ``grad`` is scratch and may be overwritten."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with optional momentum (Sutskever et al. 2013, in the form PyTorch uses).

    With weight decay g += weight_decay * w; with momentum m = momentum * m + g, and the step is m, or
    g + momentum * m where ``nesterov``; then w -= lr * step.
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
    """Adam (Kingma and Ba 2015, algorithm 1); ``iteration`` counts from 1."""

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
