"""What an optimiser is: constants, a formula, and the state that the formula keeps between iterations.

The formula in NumPy is the reference, and all that the host needs. A GPU runs the same formula as a struct of
``kernels/cuda/update.cu``. Ours are in ``kernels/optimizers.py``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype

CALL_COST = 4000  # of an update of a tensor without elements, in elements; seen on one core


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base of all optimisers. Subclasses are frozen dataclasses too, and their fields are the constants."""

    lr: float

    # What the formula is given: with ``element`` any part of the line, with ``tensor`` one tensor at a time, in its
    # shape, outputs first (``Parameter.outputs``). Buckets and shards then end where tensors end.
    scope: ClassVar[str] = "element"
    # Whether all that travels are gradients. Other sums that layers send have no part in a norm, and no code may lose
    # anything of them.
    gradients_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above zero, not {self.lr}")
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {value}")

    @property
    def state_arrays(self) -> int:
        """The number of arrays that it keeps beside the values from one iteration to the next."""
        return 0

    @abstractmethod
    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        """The formula in NumPy: changes ``value`` and ``state``, and ``grad`` if it likes. Iterations count from 1."""

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        """The formula on a GPU: a struct of ``kernels/cuda/update.cu``, and its members at this iteration, in order."""
        raise ValueError(f"optimizer {type(self).__name__!r} has no CUDA kernel: it trains on the device cpu alone")

    def cost(self, shape: tuple[int, ...]) -> int:
        """What an update of a tensor takes, in any unit: owners of whole tensors are chosen by it."""
        return CALL_COST + math.prod(shape)

    def new_state(self, value: Array) -> list[Array]:
        """The state of an array of values before the first iteration, all zero; in fp32, or fp64 for fp64."""
        zeros = array_module(value).zeros
        return [zeros(value.shape, compute_dtype(value.dtype)) for _ in range(self.state_arrays)]
