"""Adam."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizers.optimizer import Optimizer


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1).

    Weight decay works as in ``SGD``, as an L2 penalty: g += weight_decay * w comes before the moments. It is not the
    decoupled decay of ``AdamW``, and it acts on all parameters, biases and gains included.
    """

    lr: float = 3e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    state_arrays = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"beta1 and beta2 must be below 1, not {self.beta1} and {self.beta2}")

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        if self.weight_decay:
            grad += self.weight_decay * value
        self.move(iteration, value, grad, state)

    def move(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        """The step without decay."""
        mean, square = state
        step, correction = self.bias_corrections(iteration)
        mean *= self.beta1
        mean += (1 - self.beta1) * grad
        grad *= grad
        grad *= 1 - self.beta2
        square *= self.beta2
        square += grad
        root = np.sqrt(square)
        root *= correction
        root += self.epsilon
        value -= step * (mean / root)

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        return "Adam", (self.beta1, self.beta2, self.epsilon, self.weight_decay, *self.bias_corrections(iteration))

    def bias_corrections(self, iteration: int) -> tuple[float, float]:
        """Factors of the step and of the root. They correct both moments for having started at zero."""
        return self.lr / (1 - self.beta1**iteration), 1 / math.sqrt(1 - self.beta2**iteration)
