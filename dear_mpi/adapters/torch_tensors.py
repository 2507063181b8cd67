"""PyTorch's tensors as NumPy's arrays, and back, over the same memory; and the bytes of arrays, for each rank.

What ``torch.distributed`` hands to a collective becomes arrays that ours take; whatever does not fit is a ValueError.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES

NOTHING = np.empty(0, np.uint8)


def array_of(tensor: Any) -> Array:
    """The array over a tensor's memory; ValueError if that is not the host's, or not one that strides can describe.

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


@contextmanager
def plain(tensors: Sequence[Any]) -> Iterator[list[Array]]:
    """Contiguous arrays with the elements of tensors, which go back into the tensors at the end of the block."""
    arrays = [contiguous(tensor) for tensor in tensors]
    for tensor in tensors:
        if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
            raise ValueError("a tensor that is written to must have memory for each element: pass a clone()")
    yield arrays
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.size and array.ctypes.data != tensor.data_ptr():
            tensor.detach().copy_(tensor_of(array).reshape(tensor.shape))


def contiguous(tensor: Any) -> Array:
    """A tensor's elements in one piece: its own memory if it is one, else a copy."""
    return np.ascontiguousarray(array_of(tensor))


def octets(array: Array) -> Array:
    """The bytes of a contiguous array, flat: what is not reduced may have any type."""
    return array.reshape(-1).view(np.uint8)


def check_fits(name: str, tensor: Any, other: Any, times: int = 1) -> None:
    """See that a tensor has the type of another one, and so many times its elements."""
    found, expected = (tensor.numel(), tensor.dtype), (times * other.numel(), other.dtype)
    if found != expected:
        raise ValueError("{} must have {} elements of {}, not {} of {}".format(name, *expected, *found))


def counts(sizes: Sequence[int]) -> dict[str, Any]:
    """How many elements each rank owns, as an option of a collective; none where all own equally many."""
    return {} if len(set(sizes)) == 1 else {"counts": list(sizes)}


def for_each(arrays: Sequence[Array], ranks: int) -> list[Array]:
    """The bytes of an array for each rank; where there is no array, no bytes."""
    if len(arrays) not in (0, ranks):
        raise ValueError(f"a list must have a tensor for each of {ranks} ranks, not {len(arrays)}")
    return [octets(array) for array in arrays] or [NOTHING] * ranks


def only(rank: int, array: Array, ranks: int) -> list[Array]:
    """An array's bytes for one rank, and none for the others."""
    return [octets(array) if each == rank else NOTHING for each in range(ranks)]


def cut(array: Array, sizes: Sequence[int], ranks: int) -> list[Array]:
    """The bytes for each rank of an array that is cut along its first dimension, in these sizes or evenly.

    >>> [piece.tolist() for piece in cut(np.arange(3, dtype=np.uint8), [2, 1], 2)]
    [[0, 1], [2]]
    """
    if sizes and (sum(sizes) != len(array) or min(sizes) < 0):
        raise ValueError(f"split sizes must add up to {len(array)}, the first dimension, not be {list(sizes)}")
    if len(array) % ranks and not sizes:
        raise ValueError(f"the first dimension, {len(array)}, must be divisible by {ranks} ranks, or be split by sizes")
    return for_each(np.split(array, np.cumsum(sizes)[:-1] if sizes else ranks), ranks)
