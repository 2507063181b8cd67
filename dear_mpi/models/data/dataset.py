"""Examples that can be taken by number, split into a part to train on and one to test on."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dear_mpi.kernels.array import Array

Indices = npt.NDArray[np.intp]


class Examples(Protocol):
    """Examples 0 to ``len - 1``."""

    def __len__(self) -> int: ...

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All data, for a fingerprint."""

    def take(self, indices: Indices) -> tuple[Array, Array]:
        """Inputs (n, ...) and integer targets (n, ...) of these examples."""


@dataclass(frozen=True)
class ArrayExamples:
    """Row i of ``x`` with the label ``y[i]``."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.x)

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.x, self.y

    def take(self, indices: Indices) -> tuple[Array, Array]:
        return self.x[indices], self.y[indices]


@dataclass(frozen=True)
class TextExamples:
    """Windows of ``context`` bytes, with the bytes that follow each of them as targets: (n, context) both.

    ``stride`` is the distance between windows: 1 to train on all of them, ``context`` to test each byte once.
    """

    text: npt.NDArray[np.uint8]
    context: int
    stride: int = 1

    def __len__(self) -> int:
        return max(0, (len(self.text) - self.context - 1) // self.stride + 1)

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.text,)

    def take(self, indices: Indices) -> tuple[Array, Array]:
        windows = self.text[indices[:, None] * self.stride + np.arange(self.context + 1)].astype(np.int64)
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Dataset:
    """``shape`` is the shape of one input, ``classes`` the number of labels."""

    train: Examples
    test: Examples
    shape: tuple[int, ...]
    classes: int


def split(count: int, seed: int, share: float = 0.2) -> tuple[Indices, Indices]:
    """Which of ``count`` examples to train on, and which to test on; at least one of each."""
    order = np.random.default_rng(seed).permutation(count)
    tested = min(count - 1, max(1, round(count * share)))
    return order[tested:], order[:tested]
