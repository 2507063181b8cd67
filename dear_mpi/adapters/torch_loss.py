"""A loss of PyTorch in a session of ours."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from dear_mpi.adapters.torch_parameter import leaves_of
from dear_mpi.adapters.torch_tensors import array_of, tensor_of
from dear_mpi.kernels.array import Array


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
