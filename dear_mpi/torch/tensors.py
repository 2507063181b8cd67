"""Convert between PyTorch tensors and NumPy arrays over one memory, wrap parameters, and check modules.

    line     | weight | bias |......|      memory of the arena, in NumPy's terms
               ^ tensor.data                the same memory, in PyTorch's: ``tensor_of(value)``

An update of the flat buffer (``line``) updates the module's parameters, without a copy.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dear_mpi.kernels.array import Array, array_module, library_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.gpu import current_gpu
from dear_mpi.models.layer import Parameter

PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def array_of(tensor: Any) -> Array:
    """View a tensor's memory as an array, of CuPy if it is on a GPU. Raises a ValueError if it is not strided.

    >>> array_of(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
        found = f"on {tensor.device}" if tensor.layout == torch.strided else f"of {tensor.layout}"
        raise ValueError(f"tensors must be dense, and on cpu or cuda, not {found}")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    narrow = tensor.dtype == torch.bfloat16  # unknown to NumPy and CuPy
    bits = tensor.view(torch.int16) if narrow else tensor
    array: Array = bits.numpy() if tensor.device.type == "cpu" else cupy().from_dlpack(bits)
    return array.view(DTYPES["bf16"]) if narrow else array


def tensor_of(array: Array) -> Any:
    """View an array's memory as a tensor; copy if the array is read-only or has negative strides.

    >>> tensor_of(np.ones(2, np.float32))
    tensor([1., 1.])
    """
    narrow = array.dtype == DTYPES["bf16"]
    bits: Any = array.view("i2") if narrow else array
    if library_of(array) == "numpy":
        copied = not array.flags.writeable or any(stride < 0 for stride in array.strides)
        found = torch.from_numpy(bits.copy() if copied else bits)
    else:
        found = torch.from_dlpack(bits)
    return found.view(torch.bfloat16) if narrow else found


def cupy() -> Any:
    """Import CuPy, which our kernels need for tensors on a GPU. Raises a ValueError with advice."""
    current_gpu()
    import cupy as module

    return module


def contiguous(tensor: Any) -> Array:
    """Return a tensor's elements in contiguous memory: its memory if possible, else a copy."""
    return np.ascontiguousarray(array_of(tensor))


@contextmanager
def plain(tensors: Sequence[Any]) -> Iterator[list[Array]]:
    """Yield contiguous arrays with the tensors' elements, and copy them back at the end of the block."""
    arrays = [contiguous(tensor) for tensor in tensors]
    for tensor in tensors:
        if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError("a tensor that is written to must have memory for each element: pass a clone()")
    yield arrays
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.size and array.ctypes.data != tensor.data_ptr():
            tensor.detach().copy_(tensor_of(array).reshape(tensor.shape))


def octets(array: Array) -> Array:
    """View a contiguous array as flat bytes: data that is not reduced may have any type."""
    return array.reshape(-1).view(np.uint8)


class TorchParameter(Parameter):
    """A model's ``torch.nn.Parameter`` at ``name``; binding its ``value`` also binds the tensor's data.

    Its ``module``, perhaps deep inside, has the ``tensor`` as its ``key``; ``gradient`` is the tensor over ``grad``.
    """

    def __init__(self, model: Any, name: str) -> None:
        path, _, self.key = name.rpartition(".")
        self.module = model.get_submodule(path)
        self.tensor = tensor = getattr(self.module, self.key)
        try:
            value = array_of(tensor)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"parameter {name}: {error}") from None
        dtype = getattr(tensor, "grad_dtype", None) or tensor.dtype
        if tensor.requires_grad and dtype != tensor.dtype:
            raise ValueError(f"parameter {name}: grad_dtype must be {tensor.dtype}, like the parameter, not {dtype}")
        grad = np.zeros(value.shape, value.dtype)  # untouched pages until the flat buffer replaces it
        if library_of(value) != "numpy":
            grad = array_module(value).zeros(value.shape, value.dtype)
        outputs = None if isinstance(self.module, torch.nn.Embedding) else 0
        super().__init__(name, value, grad, trained=bool(tensor.requires_grad), outputs=outputs)

    @property
    def value(self) -> Array:
        """Return the bound array, or a new one if the module has another tensor, or the tensor other memory."""
        held: Any = getattr(self.module, self.key, None)
        there = held is self.tensor and held.data_ptr() == self.address
        return self.bound if there else array_of(self.tensor)

    @value.setter
    def value(self, array: Array) -> None:
        self.tensor.data = tensor_of(array)
        self.bound, self.address = array, self.tensor.data_ptr()

    @property
    def grad(self) -> Array:
        return self.bound_grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self.bound_grad, self.gradient = array, tensor_of(array)


def leaves_of(tensor: Any) -> Iterator[Any]:
    """Return the leaves of a tensor's graph, which autograd would reach."""
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
    """Check that a module is in training mode, with active dropout and running means."""
    if not module.training:
        name = type(module).__name__
        raise ValueError(f"module {name} is in eval mode: call train() on it before it is trained")


def check_module(module: Any) -> None:
    """Check that a module can be trained here. Raises a ValueError with the reason."""
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, not {module!r:.99}")
    name = type(module).__name__
    check_mode(module)
    if not any(each.requires_grad for each in module.parameters()):
        raise ValueError(f"module {name} has no parameter that is trained (requires_grad)")
    for each in module.modules():
        kind = type(each).__name__
        in_place = getattr(each, "_compiled_call_impl", None) is not None  # by module.compile()
        wrapped = hasattr(each, "_orig_mod")  # by torch.compile
        if in_place or wrapped or isinstance(each, torch.jit.ScriptModule):
            raise ValueError(f"module {name} has a compiled one in it ({kind}): give it as it was before")
        if isinstance(each, PARALLEL):
            raise ValueError(f"module {name} has a {kind} in it, which communicates by itself: unwrap it")
