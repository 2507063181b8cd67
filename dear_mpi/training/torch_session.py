"""A session for any ``torch.nn.Module``: three lines in a program of PyTorch, in place of DDP and of its optimiser.

with TorchSession(model, torch.nn.CrossEntropyLoss(reduction="sum"), comm, example=x, optimizer=SGD(lr=0.1)) as session:
    for x, targets in batches:
        print(session.step(x, targets))
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from dear_mpi.kernels.array import Array
from dear_mpi.models.adapters.torch_layers import TorchLoss
from dear_mpi.models.adapters.torch_module import TorchModule
from dear_mpi.models.adapters.torch_parameter import array_of
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.hooked import HookedTrainer
from dear_mpi.training.session import Session

__all__ = ["TorchSession"]


class TorchSession(Session):
    """Trains a module on all ranks; see ``Session``, and ``docs/other-frameworks.md`` for what does not work.

    Args:
        module: takes one tensor and returns one; the same on all ranks, with the same values.
        loss: a loss of PyTorch that returns the sum over its examples.
        example: an input, alike on all ranks, by which the order of the module's parameters is found: the first batch.
        options: those of ``Session`` without ``uses``, on the host.
    """

    def __init__(self, module: Any, loss: Any, comm: Any, *, example: Any, **options: Any) -> None:
        self.module, self.example, self.function = module, example, loss
        super().__init__((), loss, comm, **options)

    def build(self, uses: Any) -> dict[str, Any]:
        if uses is not None:
            raise ValueError(f"uses must not be given, because the module itself says what runs when: {uses!r:.99}")
        if self.options.device != "cpu":
            raise ValueError(f"device must be 'cpu' for modules of PyTorch, not {self.options.device!r}")
        self.loss = TorchLoss(self.function)
        self.model = TorchModule(self.module, given("example", self.example))
        self.layers = tuple(self.model.layers)
        self.trainer_kind = partial(HookedTrainer, self.model)
        self.threads = 1 + torch.get_num_threads()
        return super().build(None)

    def step(self, x: Any, targets: Any, *, total: int | None = None) -> float:
        """See ``Session.step``; tensors may be of bf16, too.

        Raises:
            ValueError: a tensor is not in the host's memory.
        """
        return super().step(given("x", x), given("targets", targets), total=total)

    def open(self, engine: Engine) -> None:
        self.model.attach()
        self.plans.callback(self.model.detach)
        super().open(engine)


def given(name: str, value: Any) -> Array:
    """An argument as an array, over the memory of a tensor.

    Raises:
        ValueError: it is a tensor that has none in the host.
    """
    try:
        return array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
