"""Exactly which bytes the kernels of kernels/cuda touch, so that the stand-in's order need not guess for them.

A footprint takes a launch's arguments and yields (address, nbytes, writes). It must follow the kernels' parameters.
"""

import numpy as np

from dear_mpi.kernels.dtypes import C_TYPES, DTYPES

ITEMSIZES = [dtype.itemsize for dtype in DTYPES.values()]  # by the kernels' number of a type
C_ITEMSIZES = {c_type: np.dtype(name).itemsize for name, c_type in C_TYPES.items()}


def pack(expression, tensors, blocks, scale):
    yield from moved(expression, tensors, blocks, bucket_written=True)


def unpack(expression, tensors, blocks, scale):
    yield from moved(expression, tensors, blocks, bucket_written=False)


def moved(expression, tensors, blocks, bucket_written):
    yield from whole(tensors, blocks)
    for (tensor, bucket, kind), start, stop in parts(tensors, blocks):
        yield place(tensor, start, stop, ITEMSIZES[kind], not bucket_written)
        yield place(bucket, start, stop, element_itemsize(expression), bucket_written)


def update(expression, value, grad, state0, state1, count, part, scale, finite, *numbers):
    """Values, the state that an optimizer has and the flag are written, gradients are read."""
    value_itemsize, grad_itemsize = element_itemsize(expression), element_itemsize(expression, 1)
    yield start_of(value), int(count) * value_itemsize, True
    yield start_of(grad), int(count) * grad_itemsize, False
    for array in (state0, state1):
        if start_of(array):
            yield start_of(array), int(count) * max(4, value_itemsize), True  # fp32, or fp64 for fp64
    if start_of(finite):
        yield start_of(finite), 1, True


def accumulate(expression, dst, left, right, count, part):
    yield from combined(expression, dst, [left, right], count)


def accumulate_all(expression, dst, sources, number, count, part):
    """dst = sources[0] op sources[1] op ..."""
    yield from whole(sources)
    yield from combined(expression, dst, sources._host[: int(number)].tolist(), count)


def combined(expression, dst, sources, count):
    nbytes = int(count) * element_itemsize(expression)
    yield start_of(dst), nbytes, True
    for source in sources:
        yield start_of(source), nbytes, False


def start_of(array_or_address):
    return array_or_address.data.ptr if hasattr(array_or_address, "get") else int(array_or_address)


def element_itemsize(expression, number=0):
    """Of a kernel's first type, or of another one: the one that it combines, that of its bucket or of its values."""
    return C_ITEMSIZES[expression.partition("<")[2].rstrip(">").split(", ")[number]]


def whole(*tables):
    for table in tables:
        yield table.data.ptr, table.nbytes, False


def place(address, start, stop, itemsize, write):
    return address + start * itemsize, (stop - start) * itemsize, write


def parts(rows, blocks):
    """(row, first element, one past the last) of each tensor that some block works on."""
    table = rows._host.view(np.int64)
    block = np.ascontiguousarray(blocks._host).view([("start", "i8"), ("tensor", "i4"), ("count", "i4")]).reshape(-1)
    for number in np.unique(block["tensor"]).tolist():
        own = block[block["tensor"] == number]
        yield table[number].tolist(), int(own["start"].min()), int((own["start"] + own["count"]).max())


FOOTPRINTS = {
    "pack": pack, "unpack": unpack, "update": update, "accumulate": accumulate, "accumulate_all": accumulate_all,
}  # fmt: skip
