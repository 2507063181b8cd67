"""Optimisers by name. A new one is a file in this folder and a line in ``OPTIMIZERS``."""

from dear_mpi.kernels.optimizers.adam import Adam
from dear_mpi.kernels.optimizers.adamw import AdamW
from dear_mpi.kernels.optimizers.optimizer import Optimizer
from dear_mpi.kernels.optimizers.sgd import SGD

__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Optimizer"]

OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
