"""What an optimiser is: constants, a formula, and the state that the formula needs.

    parameter   value   gradient   state (SGD: none, with momentum one array; Adam: two)
                  ^         |        ^
                  +------ update ----+       block by block in NumPy, or in one CUDA kernel for a whole bucket

The formula here is the reference. A GPU runs the same one from a struct in ``kernels/cuda/update.cu``; an optimiser
without such a struct trains on the host alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype

__all__ = ["Optimizer"]


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base of all optimisers. Subclasses are frozen dataclasses too, and their fields are what a user may set.

    Raises:
        ValueError: a constant is negative, infinite or not a number, or ``lr`` is zero.
    """

    lr: float

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above zero, not {self.lr}")
        for name in (field.name for field in fields(self)):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {getattr(self, name)}")

    @property
    def state_arrays(self) -> int:
        """The number of arrays that it keeps for each parameter from one iteration to the next."""
        return 0

    @abstractmethod
    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        """The formula in NumPy: change ``value`` and ``state`` in place. ``grad`` may be overwritten.

        Args:
            iteration: counts from 1.
        """

    @property
    def kernel(self) -> str:
        """The name of its struct in ``kernels/cuda/update.cu``."""
        raise ValueError(f"optimizer {type(self).__name__!r} has no CUDA kernel: it trains on the device cpu alone")

    def numbers(self, iteration: int) -> tuple[float, ...]:
        """The members of that struct at this iteration, in the order in which it declares them."""
        return ()

    def new_state(self, value: Array) -> list[Array]:
        """The state of one parameter before the first iteration, all zero; in fp32, or fp64 for fp64."""
        dtype = compute_dtype(value.dtype)
        return [array_module(value).zeros(value.shape, dtype) for _ in range(self.state_arrays)]
