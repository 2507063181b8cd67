"""The tables of a launch, for tests of the kernels alone: who is moved where, and which block does which part."""

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES

BLOCK = np.dtype([("start", "i8"), ("tensor", "i4"), ("count", "i4")])
TENSOR = np.dtype([("tensor", "u8"), ("bucket", "u8"), ("kind", "i8")])
PARAMETER = np.dtype([("value", "u8"), ("grad", "u8"), ("slots", "u8", 2), ("kind", "i8")])
KINDS = {dtype: kind for kind, dtype in enumerate(DTYPES.values())}


def blocks(counts, part):
    """Every tensor in parts of at most ``part`` elements, a multiple of 8; none for an empty tensor."""
    starts = [(tensor, count, start) for tensor, count in enumerate(counts) for start in range(0, count, part)]
    return np.array([(start, tensor, min(part, count - start)) for tensor, count, start in starts], BLOCK)


def address(array):
    return array.ctypes.data


def tensors(arrays, views):
    pairs = zip(arrays, views, strict=True)
    return np.array([(address(array), address(view), KINDS[array.dtype]) for array, view in pairs], TENSOR)


def parameters(values, grads, slots):
    """``slots`` holds those of each parameter, at most two."""
    rows = [
        (address(value), address(grad), [*map(address, own), 0, 0][:2], KINDS[value.dtype])
        for value, grad, own in zip(values, grads, slots, strict=True)
    ]
    return np.array(rows, PARAMETER)
