"""PyTorch's tensors as NumPy's arrays and back, over the same memory, and parameters that are both.

    line     | weight | bias |......|      memory of the arena, in NumPy's words
               ^ tensor.data                the same memory, in PyTorch's: ``tensor_of(value)``

So an update of the line is one of the module's parameters, and nothing is copied between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.layer import Parameter

COMPILED = "_orig_mod"  # where torch.compile keeps the module that it wraps
COMPILED_IN_PLACE = "_compiled_call_impl"  # where module.compile() puts what it makes


def array_of(tensor: Any) -> Array:
    """The array over a tensor's memory.

    Raises:
        ValueError: the tensor is not in the host's memory, or not in one piece that strides can describe.

    >>> array_of(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        found = f"on {tensor.device}" if tensor.layout == torch.strided else f"of {tensor.layout}"
        raise ValueError(f"tensors must be dense and in the host's memory, not {found}")
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # which NumPy does not know
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(DTYPES["bf16"])
    array: Array = tensor.resolve_conj().resolve_neg().numpy()
    return array


def tensor_of(array: Array) -> Any:
    """The tensor over an array's memory, or a copy if the array is read-only or has negative strides.

    >>> tensor_of(np.ones(2, np.float32))
    tensor([1., 1.])
    """
    array = np.asarray(array)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    if array.dtype == DTYPES["bf16"]:
        return torch.from_numpy(array.view("i2")).view(torch.bfloat16)
    return torch.from_numpy(array)


class TorchParameter(Parameter):
    """A ``torch.nn.Parameter``; binding its ``value`` anew binds the data of the tensor.

    Args:
        module, key: the module that holds it, and its name there.

    Attributes:
        tensor: the module's tensor.
        gradient: the tensor over ``grad``.
    """

    def __init__(self, name: str, module: Any, key: str) -> None:
        self.module, self.key = module, key
        self.tensor = tensor = getattr(module, key)
        try:
            value = array_of(tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"parameter {name}: {error}") from None
        grad = np.zeros(value.shape, value.dtype)  # of pages that no code touches before the line takes its place
        super().__init__(name, value, grad, trained=bool(tensor.requires_grad))

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

    @property
    def grad(self) -> Array:
        return self.place

    @grad.setter
    def grad(self, array: Array) -> None:
        self.place, self.gradient = array, tensor_of(array)

    def write(self, gradient: Any) -> None:
        """Put a gradient where it travels from; None, of a parameter that took no part, is zero."""
        if gradient is None:
            self.gradient.zero_()
        else:
            self.gradient.copy_(gradient.to_dense())


def parameters_of(
    module: Any, prefix: str = "", known: dict[int, TorchParameter] | None = None
) -> list[TorchParameter]:
    """The parameters of a module, each once, with their full names.

    Args:
        known: by the identity of the tensor; one that is there is taken from there, and others are put there.
    """
    known = {} if known is None else known
    found: dict[int, TorchParameter] = {}
    for place, each in module.named_modules(prefix=prefix):
        for key, tensor in each.named_parameters(recurse=False):
            if id(tensor) not in known:
                known[id(tensor)] = TorchParameter(f"{place}.{key}" if place else key, each, key)
            found.setdefault(id(tensor), known[id(tensor)])
    return list(found.values())


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


def check_trained(parameters: Iterable[TorchParameter]) -> None:
    """See that what was frozen still is, and nothing else.

    Raises:
        ValueError: ``requires_grad`` of one has changed.
    """
    for each in parameters:
        if each.tensor.requires_grad != each.trained:
            change = "frozen" if each.trained else "to be trained"
            raise ValueError(f"parameter {each.name} is {change} since the session began: begin a new session for that")


def check_mode(module: Any) -> None:
    """See that it is in the mode for training, in which dropout drops and running means run.

    Raises:
        ValueError: it is not.
    """
    if not module.training:
        name = type(module).__name__
        raise ValueError(f"module {name} is in eval mode: call train() on it before it is trained")


def check_module(module: Any) -> None:
    """See that it is a module which can be trained here.

    Raises:
        ValueError: it is not; the message says why.
    """
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {module!r:.99}")
    name = type(module).__name__
    check_mode(module)
    trained: Mapping[str, Any] = {key: each for key, each in module.named_parameters() if each.requires_grad}
    if not trained:
        raise ValueError(f"module {name} has no parameter that is trained (requires_grad)")
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    for each in module.modules():
        in_place = getattr(each, COMPILED_IN_PLACE, None) is not None
        if in_place or hasattr(each, COMPILED) or isinstance(each, torch.jit.ScriptModule):
            raise ValueError(
                f"module {name} has a compiled one in it ({type(each).__name__}): give it as it was before"
            )
        if isinstance(each, parallel):
            raise ValueError(
                f"module {name} has a {type(each).__name__} in it, which communicates by itself: unwrap it"
            )
