"""Stochastic gradient descent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizers.optimizer import Optimizer


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum (Sutskever et al. 2013, in the form PyTorch uses).

    With weight decay g += weight_decay * w, for all parameters, biases and gains included; with momentum m = momentum *
    m + g, and the step is m, or g + momentum * m where ``nesterov``; then w -= lr * step.
    """

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above zero")

    @property
    def state_arrays(self) -> int:
        return 1 if self.momentum else 0

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        if self.weight_decay:
            grad += self.weight_decay * value
        step = grad
        if self.momentum:
            (velocity,) = state
            velocity *= self.momentum
            velocity += grad
            if self.nesterov:
                grad += self.momentum * velocity
            else:
                step = velocity
        value -= np.multiply(step, self.lr, out=grad)

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        if self.momentum:
            return "Momentum", (self.lr, self.weight_decay, self.momentum, self.nesterov)
        return "Sgd", (self.lr, self.weight_decay)
