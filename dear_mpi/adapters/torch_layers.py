"""``torch.nn.Sequential``, layer by layer: each child is a layer of ours, under any schedule.

    session = Session(torch_layers(model), TorchLoss(torch.nn.CrossEntropyLoss(reduction="sum")), comm)

A layer keeps the autograd graph of its own child alone: its input is a new leaf, and ``backward`` asks autograd for the
gradients of that leaf and of the parameters. Modules with branches are trained as a whole (``torch_module.py``).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dear_mpi.adapters.torch_parameter import TorchParameter, check_module, check_trained, leaves_of, parameters_of
from dear_mpi.adapters.torch_tensors import array_of, tensor_of
from dear_mpi.kernels.array import Array

__all__ = ["TorchLayer", "TorchLoss", "torch_layers"]


class TorchLayer:
    """A module as a layer.

    Args:
        module: takes one tensor and returns one.
        parameters: those that it uses.
    """

    def __init__(self, module: Any, parameters: Sequence[TorchParameter]) -> None:
        self.module, self.parameters = module, tuple(parameters)

    def forward(self, x: Array) -> Array:
        """The module's output; ValueError if it is not one tensor, or ``requires_grad`` of a parameter has changed."""
        check_trained(self.parameters)
        self.x = tensor_of(x)
        if self.x.is_floating_point():
            self.x.requires_grad_()
        with torch.enable_grad():
            self.y = self.module(self.x)
        return array_of(one_tensor(self.module, self.y))

    def backward(self, dy: Array) -> Array:
        """Write all gradients; return the input's, or an empty array where the input is of integers."""
        trained = [parameter for parameter in self.parameters if parameter.trained]
        inputs = [self.x] if self.x.requires_grad else []
        wanted = [*inputs, *(parameter.tensor for parameter in trained)]
        y, self.y = self.y, None  # the graph is let go
        if y.requires_grad:
            found = torch.autograd.grad(y, wanted, tensor_of(dy), allow_unused=True, materialize_grads=True)
        else:
            found = [torch.zeros_like(tensor) for tensor in wanted]
        for parameter, gradient in zip(trained, found[len(inputs) :], strict=True):
            parameter.write(gradient)
        return array_of(found[0]) if inputs else np.zeros(0, dy.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchLayer:
        """Another use of the same module."""
        return copy.copy(self)


def torch_layers(sequential: Any) -> list[TorchLayer]:
    """The children of a ``torch.nn.Sequential`` as layers; a child that is there twice is tied to itself.

    Raises:
        ValueError: it is none, or cannot be trained; see ``check_module``.
    """
    if not isinstance(sequential, torch.nn.Sequential):
        kind = type(sequential).__name__
        raise ValueError(f"torch_layers takes a torch.nn.Sequential, not {kind}: TorchSession trains any module")
    check_module(sequential)
    known = {each.tensor: each for each in parameters_of(sequential)}
    return [TorchLayer(child, [known[tensor] for tensor in child.parameters()]) for child in sequential]


class TorchLoss:
    """A loss of PyTorch: called with outputs and targets, it returns the *sum* over these examples.

    Raises:
        ValueError: it says itself that it reduces in another way, as PyTorch's losses do unless they are told.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        if not callable(function):
            raise ValueError(f"loss must be a function of outputs and targets, not {function!r:.99}")
        found = reduction_of(function)
        if found not in (None, "sum"):
            advice = "ranks may have unequal parts, so the session takes the mean: give it reduction='sum'"
            raise ValueError(f"loss must be the sum over its examples, not their {found!r}; {advice}")
        self.function = function

    def forward(self, outputs: Array, targets: Array) -> float:
        """The sum; ValueError if the loss is not one number, or depends on more than the outputs."""
        self.outputs = tensor_of(outputs).requires_grad_()
        with torch.enable_grad():
            self.total = self.function(self.outputs, tensor_of(targets))
        if not isinstance(self.total, torch.Tensor) or self.total.ndim:
            raise ValueError(f"loss must be one number, the sum over its examples, not {self.total!r:.99}")
        if any(leaf is not self.outputs for leaf in leaves_of(self.total)):
            advice = "whose gradients would be lost: let the module return what the loss needs, or take decay"
            raise ValueError(f"loss depends on parameters, or on other tensors with gradients, {advice}")
        return float(self.total.detach())

    def backward(self, scale: float) -> Array:
        """The gradient of ``scale`` times the sum."""
        total, self.total = self.total, None
        (gradient,) = torch.autograd.grad(total, self.outputs, torch.full_like(total, scale))
        return array_of(gradient)


def reduction_of(function: Any) -> object:
    """What a module, or a function's default, says about how it reduces; None if it says nothing."""
    if isinstance(function, torch.nn.Module):
        return getattr(function, "reduction", None)
    try:
        known = inspect.signature(function).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    return None if known is None or known.default is inspect.Parameter.empty else known.default


def one_tensor(module: Any, y: Any) -> Any:
    """What a module has returned; ValueError if it is not one tensor."""
    if not isinstance(y, torch.Tensor):
        advice = "wrap it in a module that returns the tensor which the loss takes"
        raise ValueError(f"module {type(module).__name__} must return one tensor, not {type(y).__name__}: {advice}")
    return y
