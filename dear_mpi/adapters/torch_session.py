"""Train any ``torch.nn.Module`` in a session: three lines in a PyTorch program replace DDP and its optimiser.

with TorchSession(model, torch.nn.CrossEntropyLoss(reduction="sum"), comm, example=x, optimizer=SGD(lr=0.1)) as session:
    for x, targets in batches:
        print(session.step(x, targets))
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from dear_mpi.adapters.torch_module import TorchModule
from dear_mpi.adapters.torch_tensors import array_of, check_mode, leaves_of, tensor_of
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.log import Times
from dear_mpi.training.profile import Profile
from dear_mpi.training.profiler import Profiler
from dear_mpi.training.session import Session

__all__ = ["TorchSession"]


class TorchSession(Session):
    """Trains a module on all ranks; see ``Session``, and ``docs/other-frameworks.md`` for limitations.

    Args:
        module: takes one tensor and returns one; equal on all ranks, with equal values.
        loss: a PyTorch loss that returns the sum over its examples.
        example: an input, equal on all ranks, that reveals the order of the module's parameters: the first batch.
        options: as for ``Session``, without ``uses``, on the host.
    """

    passes: TorchModule

    def __init__(self, module: Any, loss: Any, comm: Any, *, example: Any, **options: Any) -> None:
        self.module, self.example, self.function = module, example, loss
        self.hooks, self.lock = ExitStack(), RLock()
        super().__init__((), loss, comm, **options)

    @classmethod
    def profile(
        cls, module: Any, loss: Any, x: Any, targets: Any, *, iterations: int = 20, name: str = "", **options: Any
    ) -> Profile:
        """Measure a module's parts on this machine, without MPI, for ``dear-mpi simulate --profile FILE``.

        It trains a copy on this one batch, at a learning rate too low for divergence: the module, its gradients and
        PyTorch's random numbers stay unchanged.

        Args:
            name: of the model; by default its class's name.
            options: of a session, such as the optimiser, to measure its updates.
        """
        x, targets, trained = given("x", x), given("targets", targets), copy.deepcopy(module)
        plain = {"schedule": "sequential", "fusion": "buckets:1", "learning_rate": lambda update: 1e-12}

        def measured(transport: Transport) -> Profile:
            with cls(trained, loss, transport, example=x, **plain | options) as session:
                profiler = Profiler(session.group)
                for _ in range(iterations):
                    session.step(x, targets)
                    profiler.note()
                return profiler.profile(name or type(module).__name__, batch=len(x))

        with torch.random.fork_rng(devices=[]):
            (found,) = run_loopback(1, measured)
            return replace(found, forward_flops=flops_of(trained, x))

    def build(self, uses: Any) -> dict[str, Any]:
        if uses is not None:
            raise ValueError(f"uses must not be given, because the module itself says what runs when: {uses!r:.99}")
        if self.options.device != "cpu":
            raise ValueError(f"device must be 'cpu' for modules of PyTorch, not {self.options.device!r}")
        self.loss = TorchLoss(self.function)
        self.passes = TorchModule(self.module, given("example", self.example))
        layers: Any = self.passes.uses  # its passes are not called
        self.layers = tuple(layers)
        self.threads = 1 + torch.get_num_threads()
        return super().build(None)

    def step(self, x: Any, targets: Any, *, total: int | None = None) -> float:
        """Run a step, see ``Session.step``.

        Raises:
            ValueError: a tensor is not in host memory, or the module is in eval mode.
        """
        check_mode(self.module)
        return super().step(given("x", x), given("targets", targets), total=total)

    def open(self, engine: Engine) -> None:
        self.passes.attach(self.hooks)
        super().open(engine)

    def iterate(self, schedule: str, x: Array, targets: Array, total: int) -> tuple[float, Times]:
        with self.lock:
            self.passes.between.resume()
            found = super().iterate(schedule, x, targets, total)
            if not self.group.trainers[schedule].rules.idle:
                self.passes.between.pause(self.finish)
            return found

    def finish(self) -> None:
        """Finish this rank's work in flight, because a parameter is used between steps; not collective."""
        with self.lock:  # on any thread
            if self.passes.between.paused:
                self.group.trainers[self.last].finish()
                self.passes.between.resume()

    def leave(self) -> None:
        if "passes" in vars(self) and self.passes.between.paused:
            if not self.engine.thread.is_alive():  # else the other ranks may never answer
                with suppress(CollectiveError):
                    self.finish()
            self.passes.between.resume()
        self.hooks.close()
        super().leave()


class TorchLoss:
    """A PyTorch loss: called with outputs and targets, it returns the *sum* over these examples, one number.

    Raises:
        ValueError: it declares another reduction, as PyTorch's losses do by default; later, it returns another kind of
            result, or depends on more than the outputs.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        if not callable(function):
            raise ValueError(f"loss must be a function of outputs and targets, not {function!r:.99}")
        found = reduction_of(function)
        if found not in (None, "sum"):
            advice = "ranks may have unequal parts, so the session takes the mean: give it reduction='sum'"
            raise ValueError(f"loss must be the sum over its examples, not their {found!r}; {advice}")
        self.function = function

    def forward(self, outputs: Any, targets: Array) -> float:
        """Return the loss; 0 if there are no outputs."""
        if outputs is None:
            self.total = None
            return 0.0
        self.outputs = tensor_of(outputs).requires_grad_()
        with torch.enable_grad():
            self.total = self.function(self.outputs, tensor_of(targets))
        if not isinstance(self.total, torch.Tensor) or self.total.ndim:
            raise ValueError(f"loss must be one number, the sum over its examples, not {self.total!r:.99}")
        if any(leaf is not self.outputs for leaf in leaves_of(self.total)):
            advice = "whose gradients would be lost: let the module return what the loss needs, or take decay"
            raise ValueError(f"loss depends on parameters, or on other tensors with gradients, {advice}")
        return float(self.total.detach())

    def backward(self, scale: float) -> Any:
        total, self.total = self.total, None
        if total is None:
            return None
        (gradient,) = torch.autograd.grad(total, self.outputs, torch.full_like(total, scale))
        return array_of(gradient)


def reduction_of(function: Any) -> object:
    """Return the reduction that a module, or a function's default, declares; None if it declares none."""
    if isinstance(function, torch.nn.Module):
        return getattr(function, "reduction", None)
    try:
        known = inspect.signature(function).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return None if known is None or known.default is inspect.Parameter.empty else known.default


def flops_of(module: Any, x: Array) -> float | None:
    """Count a forward pass's floating-point operations; None if PyTorch counts none."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(tensor_of(x.copy()))  # a module may change its input
    return float(counter.get_total_flops()) or None


def given(name: str, value: Any) -> Array:
    """View an argument as an array over a tensor's memory.

    Raises:
        ValueError: it is not one tensor or array of the host.
    """
    if isinstance(value, torch.Tensor):
        try:
            return array_of(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"{name}: {error}") from None
    several = isinstance(value, list | tuple) and any(getattr(each, "ndim", 0) for each in tree_leaves(value))
    with suppress(ValueError):  # lists of unequal length
        array = np.asarray(value)
        if not several and (array.dtype.kind in "biufc" or array.dtype == DTYPES["bf16"]):
            return array
    advice = "pass one padded, stacked or concatenated tensor, and let a module around the model take it apart"
    raise ValueError(f"{name} must be one tensor or array of numbers, not {type(value).__name__}: {advice}")
