"""Define what an optimizer is: constants, an update formula and state.

The NumPy formula is the reference; GPUs run a struct of ``kernels/cuda/update.cu``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype

CALL_COST = 4000  # empty tensor's update, in elements; measured on one core


@dataclass(frozen=True)
class Optimizer(ABC):
    """Subclasses are frozen dataclasses of the constants."""

    lr: float

    # ``update`` receives an ``element``: any segment of the flat buffer; or a ``tensor`` in its
    # shape, outputs first (``Parameter.outputs``); buckets and shards then end at tensor ends.
    scope: ClassVar[str] = "element"
    # Ranks exchange only gradients. Other sums are left out of norms and not compressed lossily.
    gradients_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above zero, not {self.lr}")
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {value}")

    @property
    def state_arrays(self) -> int:
        return 0

    @abstractmethod
    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        """Update in place; ``grad`` may be overwritten. Iterations count from 1."""

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        """Return the struct of ``kernels/cuda/update.cu`` and its members in order."""
        raise ValueError(f"optimizer {type(self).__name__!r} has no CUDA kernel: it trains only on the device cpu")

    def cost(self, shape: tuple[int, ...]) -> int:
        """Estimate an update in elements, to choose owners of whole tensors."""
        return CALL_COST + math.prod(shape)

    def adapted(self, layers: Sequence[Any]) -> Sequence[Any]:
        return layers

    def profiled(self, profile: Any, modules: Sequence[Any]) -> Any:
        """Return the profile with further sums that ranks exchange, for predictions."""
        return profile

    def new_state(self, value: Array) -> list[Array]:
        zeros = array_module(value).zeros
        return [zeros(value.shape, compute_dtype(value.dtype)) for _ in range(self.state_arrays)]
