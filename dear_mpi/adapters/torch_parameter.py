"""PyTorch's parameters as ours, and the modules that they are in.

    line     | weight | bias |......|      memory of the arena, in NumPy's words
               ^ tensor.data                the same memory, in PyTorch's: ``tensor_of(value)``

So an update of the line is one of the module's parameters, and nothing is copied between the two.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from dear_mpi.adapters.torch_tensors import array_of, tensor_of
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter

COMPILED = "_orig_mod"  # where torch.compile keeps the module that it wraps
COMPILED_IN_PLACE = "_compiled_call_impl"  # where module.compile() puts what it makes
PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


class TorchParameter(Parameter):
    """A ``torch.nn.Parameter``; binding its ``value`` anew binds the data of the tensor.

    Args:
        model: has it at ``name``, perhaps deep inside.

    Attributes:
        module, key: the module that holds it, and its name there.
        tensor: the module's tensor.
        gradient: the tensor over ``grad``.
    """

    def __init__(self, model: Any, name: str) -> None:
        path, _, self.key = name.rpartition(".")
        self.module = model.get_submodule(path)
        self.tensor = tensor = getattr(self.module, self.key)
        try:
            value = array_of(tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"parameter {name}: {error}") from None
        grad = np.zeros(value.shape, value.dtype)  # of pages that no code touches before the line takes its place
        outputs = None if isinstance(self.module, torch.nn.Embedding) else 0
        super().__init__(name, value, grad, trained=bool(tensor.requires_grad), outputs=outputs)

    @property
    def value(self) -> Array:
        """The array that was bound, or a new one where the module has another tensor, or the tensor other memory."""
        held: Any = getattr(self.module, self.key, None)
        there = held is self.tensor and held.data_ptr() == self.address
        return self.bound if there else array_of(self.tensor)

    @value.setter
    def value(self, array: Array) -> None:
        self.tensor.data = tensor_of(array)
        self.bound, self.address = array, self.tensor.data_ptr()

    def check_trained(self) -> None:
        """See that it is frozen if it was when the session began, and trained if it was."""
        if self.tensor.requires_grad != self.trained:
            change = "frozen" if self.trained else "to be trained"
            raise ValueError(f"parameter {self.name} is {change} since the session began: begin a new session for that")

    @property
    def grad(self) -> Array:
        return self.bound_grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self.bound_grad, self.gradient = array, tensor_of(array)


def leaves_of(tensor: Any) -> Iterator[Any]:
    """The leaves of a tensor's graph: those whose gradients autograd would come to."""
    nodes, seen = [tensor.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                yield leaf
            nodes += [before for before, _ in node.next_functions]


def check_mode(module: Any) -> None:
    """See that it is in the mode for training, in which dropout drops and running means run."""
    if not module.training:
        name = type(module).__name__
        raise ValueError(f"module {name} is in eval mode: call train() on it before it is trained")


def check_module(module: Any) -> None:
    """See that it is a module which can be trained here; the ValueError says why not."""
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {module!r:.99}")
    name = type(module).__name__
    check_mode(module)
    if not any(each.requires_grad for each in module.parameters()):
        raise ValueError(f"module {name} has no parameter that is trained (requires_grad)")
    for each in module.modules():
        kind = type(each).__name__
        in_place = getattr(each, COMPILED_IN_PLACE, None) is not None
        if in_place or hasattr(each, COMPILED) or isinstance(each, torch.jit.ScriptModule):
            raise ValueError(f"module {name} has a compiled one in it ({kind}): give it as it was before")
        if isinstance(each, PARALLEL):
            raise ValueError(f"module {name} has a {kind} in it, which communicates by itself: unwrap it")
