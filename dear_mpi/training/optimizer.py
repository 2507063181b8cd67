"""Optimisers by name: hyperparameters here, arithmetic in ``kernels/update.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.rules import SGD, Adam, Rule

__all__ = ["OPTIMIZERS", "Optimizer"]


@dataclass(frozen=True)
class Optimizer:
    """An optimiser's name and hyperparameters. Adam uses lr and weight_decay, SGD all of them.

    Raises:
        ValueError: the name is unknown, or Nesterov is asked for without momentum.
    """

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        lookup("optimizer", self.name, OPTIMIZERS)
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above zero, not {self.lr}")
        if self.nesterov and not (self.name == "sgd" and self.momentum > 0):
            raise ValueError("nesterov needs the optimizer sgd with a momentum above zero")
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum is for the optimizer sgd, not {self.name}")

    def rule(self, iteration: int) -> Rule:
        """The update of this iteration, counted from 1."""
        return OPTIMIZERS[self.name](self, iteration)

    def new_slots(self, value: Array) -> list[Array]:
        """State for one parameter, all zero."""
        slots = 2 if self.name == "adam" else int(self.momentum > 0)
        dtype = compute_dtype(value.dtype)
        return [array_module(value).zeros(value.shape, dtype) for _ in range(slots)]


def sgd(optimizer: Optimizer, iteration: int) -> Rule:
    return SGD(optimizer.lr, optimizer.momentum, optimizer.nesterov, optimizer.weight_decay)


def adam(optimizer: Optimizer, iteration: int) -> Rule:
    return Adam(optimizer.lr, iteration, weight_decay=optimizer.weight_decay)


OPTIMIZERS: dict[str, Callable[[Optimizer, int], Rule]] = {"sgd": sgd, "adam": adam}
