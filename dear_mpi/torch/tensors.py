"""Convert between PyTorch tensors and arrays over one memory, and wrap parameters.

flat buffer     | weight | bias |......|     memory of the arena, in NumPy's or CuPy's terms
                  ^ tensor.data               the same memory, in PyTorch's: ``tensor_of(value)``
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dear_mpi.kernels.array import Array, array_module, device_array, library_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.layer import Parameter


def array_of(tensor: Any) -> Array:
    """View a dense tensor's memory as an array, of CuPy if it is on a GPU.

    >>> array_of(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    tensor = tensor.detach()
    narrow = tensor.dtype == torch.bfloat16  # unknown to NumPy and CuPy
    bits = tensor.view(torch.int16) if narrow else tensor
    array: Array = bits.numpy() if tensor.device.type == "cpu" else device_array(bits)
    return array.view(DTYPES["bf16"]) if narrow else array


def tensor_of(array: Array) -> Any:
    """View a writable array's memory as a tensor.

    >>> tensor_of(array_of(torch.ones(2)))
    tensor([1., 1.])
    """
    narrow = array.dtype == DTYPES["bf16"]
    bits: Any = array.view("i2") if narrow else array
    found = torch.from_numpy(bits) if library_of(array) == "numpy" else torch.from_dlpack(bits)
    return found.view(torch.bfloat16) if narrow else found


def dense(tensor: Any) -> Any:
    """Return a tensor whose memory holds its elements in order: the same memory if possible, else a copy.

    Raises:
        ValueError: it is not strided, or not on cpu or cuda.
    """
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
        raise ValueError(f"tensors must be dense, and on cpu or cuda, not {tensor.layout} on {tensor.device}")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def octets(tensor: Any) -> Array:
    """View a tensor's elements as flat bytes: data that is not reduced may have any type. Copies unless contiguous."""
    return array_of(dense(tensor)).reshape(-1).view("u1")


@contextmanager
def plain(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield dense tensors with the tensors' elements, and copy them back at the end of the block."""
    copies = [dense(tensor) for tensor in tensors]
    for tensor in tensors:
        if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError("a tensor that is written to must have memory for each element: pass a clone()")
    yield copies
    for tensor, copy in zip(tensors, copies, strict=True):
        if copy.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(copy)


class TorchParameter(Parameter):
    """A model's ``torch.nn.Parameter``; binding its ``value`` also binds the tensor's data.

    Arrays have the axes in the order of the tensor's memory, so ``channels_last`` weights stay so. ``gradient`` is the
    tensor over ``grad``; ``call`` is the layer call that needs it first.
    """

    def __init__(self, name: str, tensor: Any, call: Any) -> None:
        self.tensor, self.call = tensor, call
        self.strides = torch.empty_like(tensor, device="meta").stride()  # without gaps
        self.order = sorted(range(tensor.ndim), key=lambda axis: -self.strides[axis])
        value = array_of(tensor.detach().permute(self.order))
        super().__init__(name, value, array_module(value).zeros(value.shape, value.dtype))

    def shaped(self, tensor: Any) -> Any:
        return tensor.as_strided(self.tensor.shape, self.strides)

    def flat(self, tensor: Any) -> Any:
        """Return a tensor of the parameter's shape as a flat one in memory order."""
        return tensor.permute(self.order).reshape(-1)

    @property
    def value(self) -> Array:
        return self.bound

    @value.setter
    def value(self, array: Array) -> None:
        self.tensor.data = self.shaped(tensor_of(array))
        self.bound, self.address = array, self.tensor.data_ptr()

    @property
    def grad(self) -> Array:
        return self.bound_grad

    @grad.setter
    def grad(self, array: Array) -> None:
        self.bound_grad, self.gradient = array, self.shaped(tensor_of(array))
