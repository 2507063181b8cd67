"""AdamW."""

from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.optimizers.adam import Adam


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2, in the form PyTorch uses).

    First w *= 1 - lr * weight_decay, for all parameters, biases and gains included; then Adam without decay.
    """

    weight_decay: float = 0.01

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        value *= self.kept
        self.move(iteration, value, grad, state)

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        return "AdamW", (self.beta1, self.beta2, self.epsilon, self.kept, *self.bias_corrections(iteration))

    @property
    def kept(self) -> float:
        """What decay leaves of a value."""
        return 1 - self.lr * self.weight_decay
