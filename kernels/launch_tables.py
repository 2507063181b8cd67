"""Build the tables that tell each CUDA block its elements: one launch covers a list of tensors.

    tensors   [0: pointers, type][1: pointers, type][2: ...]           a row each
    blocks    [0, 0..8191][0, 8192..16383][0, ..][1, 0..99][2, 0..]    a row each: tensor, and which elements

They are in device memory, for any number of tensors. Addresses must not change.
"""

from collections.abc import Sequence

import numpy as np

from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup

THREADS = 256
PART = 4096  # elements per block: 16 per thread
COMBINE_PART = 2048  # elements, for combining: segments are short, and every multiprocessor needs a block

# tensors may have more than 2^31 elements
BLOCK = np.dtype([("start", np.int64), ("tensor", np.int32), ("count", np.int32)])

KINDS = {dtype.name: kind for kind, dtype in enumerate(DTYPES.values())}


def row_table(*columns: Sequence[Array]) -> Array:
    kinds = [lookup("type of a tensor", array.dtype.name, KINDS) for array in columns[0]]
    rows = [[*map(address, row), kind] for *row, kind in zip(*columns, kinds, strict=True)]
    return np.array(rows, np.int64)


def address(array: Array) -> int:
    if not array.flags.c_contiguous:
        raise ValueError(f"tensors on a GPU must be contiguous, not of strides {array.strides}")
    on_host = library_of(array) == "numpy"
    return int(array.ctypes.data if on_host else array.data.ptr)  # type: ignore[attr-defined]


def block_table(counts: Sequence[int], part: int = PART) -> Array:
    numbers = np.repeat(np.arange(len(counts)), [grid_of(count, part) for count in counts])
    table = np.empty(len(numbers), BLOCK)
    first = np.searchsorted(numbers, numbers)
    table["tensor"] = numbers
    table["start"] = (np.arange(len(numbers)) - first) * part
    table["count"] = np.minimum(np.asarray(counts, np.int64)[numbers] - table["start"], part)
    return table


def grid_of(count: int, part: int = PART) -> int:
    return -(-count // part)
