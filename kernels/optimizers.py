"""Define the optimizers: constants, an update formula and state each.

The NumPy formula is the reference; GPUs run a struct of ``kernels/cuda/update.cu``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype

LEAST = 2.0**-149
CALL_COST = 4000  # empty tensor's update, in elements; measured on one core


@dataclass(frozen=True)
class Optimizer(ABC):
    """Subclasses are frozen dataclasses of the constants."""

    lr: float

    # ``update`` receives an ``element``: any segment of the flat buffer; or a ``tensor`` in its
    # shape, outputs first (``Parameter.outputs``); buckets and shards then end at tensor ends.
    scope: ClassVar[str] = "element"
    # Whether ranks exchange only gradients. Other sums are left out of norms and not compressed lossily.
    gradients_alone: ClassVar[bool] = True
    in_arrays: ClassVar[bool] = True  # whether all state is in the arrays of ``new_state``; PyTorch's is not

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

    def bind(self, bucket: Any) -> list[Any]:
        """Return the calls that update a bucket's own part (``BoundBucket``)."""
        return bucket.updaters_on_arrays()

    def begin_cut(self) -> None:
        """Take back state that buckets hold, before they are cut anew."""
        return

    def new_state(self, value: Array) -> list[Array]:
        zeros = array_module(value).zeros
        return [zeros(value.shape, compute_dtype(value.dtype)) for _ in range(self.state_arrays)]


@dataclass(frozen=True)
class SGD(Optimizer):
    """SGD with momentum (Sutskever et al. 2013, in PyTorch's form).

    g += weight_decay * w; m = momentum * m + g; the step is m, or g + momentum * m if ``nesterov``; w -= lr * step.
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


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1).

    Weight decay is an L2 penalty before the moments.
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
        if self.epsilon < LEAST:
            said = f"above zero in fp32, not {self.epsilon:g}: an element without a gradient would become 0 / 0"
            raise ValueError(f"epsilon must be {said}")

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        if self.weight_decay:
            grad += self.weight_decay * value
        self.move(iteration, value, grad, state)

    def move(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
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
        """Return factors of the step and of the root: moments start at zero."""
        return self.lr / (1 - self.beta1**iteration), 1 / math.sqrt(1 - self.beta2**iteration)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2, in PyTorch's form).

    First w *= 1 - lr * weight_decay; then Adam without decay.
    """

    weight_decay: float = 0.01

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        value *= self.kept
        self.move(iteration, value, grad, state)

    def kernel(self, iteration: int) -> tuple[str, tuple[float, ...]]:
        return "AdamW", (self.beta1, self.beta2, self.epsilon, self.kept, *self.bias_corrections(iteration))

    @property
    def kept(self) -> float:
        return 1 - self.lr * self.weight_decay


@dataclass(frozen=True)
class Lamb(Adam):
    """Adam with a step of length lr * |w| per tensor (You et al. 2020, algorithm 2).

    u = Adam's step + weight_decay * w; w -= lr * |w| / |u| * u. If a norm is zero, w -= lr * u. Norms are in fp64.
    """

    weight_decay: float = 0.01

    scope: ClassVar[str] = "tensor"

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        step = np.zeros_like(value)
        self.move(iteration, step, grad, state)
        step /= -self.lr
        step += self.weight_decay * value
        lengths = [float(np.sqrt(np.square(array, dtype=np.float64).sum())) for array in (value, step)]
        trust = lengths[0] / lengths[1] if min(lengths) > 0 else 1.0
        value -= np.multiply(step, self.lr * trust, out=step)

    kernel = Optimizer.kernel


VECTOR_COST = 8  # per element of AdamW, if a matrix costs max * min^2; measured on one core
# Small singular values grow by 3.4 a step, the fastest possible, and do not settle at 1
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
EPSILON = 1e-7  # added to the norm: zeros stay zeros


@dataclass(frozen=True)
class Muon(AdamW):
    """Momentum with orthogonalized matrices (Jordan 2024); all other tensors use ``AdamW``.

    Matrices, and convolution kernels as (outputs, rest): m += (1 - momentum) * (g - m); g += momentum * (m - g), which
    is Nesterov's; w -= lr * sqrt(max(1, outputs / inputs)) * orthogonalised(g). Vectors, embeddings and output layers
    use the rate vector_rate * lr. For a matrix the first state array is m and the second stays zero.
    """

    lr: float = 0.02
    beta2: float = 0.95
    weight_decay: float = 0.0
    momentum: float = 0.95
    vector_rate: float = 0.15

    scope: ClassVar[str] = "tensor"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1:
            raise ValueError(f"momentum must be below 1, not {self.momentum}")
        if not self.vector_rate:
            raise ValueError("vector_rate must be above zero, not 0")

    def update(self, iteration: int, value: Array, grad: Array, state: Sequence[Array]) -> None:
        if not is_matrix(value.shape):
            self.beside.update(iteration, value, grad, state)
            return
        value *= self.kept
        mean = state[0]
        mean += (1 - self.momentum) * (grad - mean)
        grad += self.momentum * (mean - grad)
        step = orthogonalised(grad.reshape(len(grad), -1))
        scale = math.sqrt(max(1, step.shape[0] / step.shape[1]))
        value -= (self.lr * scale * step).reshape(value.shape)

    @property
    def beside(self) -> AdamW:
        return AdamW(self.vector_rate * self.lr, self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def cost(self, shape: tuple[int, ...]) -> int:
        size = math.prod(shape)
        smaller = min(shape[0], size // shape[0]) if is_matrix(shape) else VECTOR_COST
        return VECTOR_COST * CALL_COST + size * smaller

    kernel = Optimizer.kernel


def is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) in (2, 4) and math.prod(shape) > 0


def orthogonalised(matrix: Array) -> Array:
    """Approximate the nearest orthogonal matrix: U S V^T becomes U S' V^T with S' in about 0.7 to 1.2.

    X = a X + (b A + c A A) X with A = X X^T maps each singular value s to a s + b s^3 + c s^5. Cost: 4 max min^2 + 2
    min^3 flops. Source: github.com/KellerJordan/Muon, which computes in bf16.

    >>> np.linalg.svd(orthogonalised(np.diag([9.0, 5.0, 1.0])), compute_uv=False).round(1)
    array([0.9, 0.8, 0.7])
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = np.ascontiguousarray(matrix.T if tall else matrix)
    x = x / x.dtype.type(math.sqrt(np.square(x, dtype=np.float64).sum()) + EPSILON)
    for _ in range(STEPS):
        gram = x @ x.T
        x = x * A + (gram * B + (gram @ gram) * C) @ x
    return x.T if tall else x


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": Lamb,
    "muon": Muon,
}
