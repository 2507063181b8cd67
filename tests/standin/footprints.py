"""Exactly which bytes the kernels of kernels/cuda touch, so that the stand-in's order need not guess for them.

A footprint takes a launch's arguments and yields (address, nbytes, writes). It must follow the kernels' parameters.
"""

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES

ITEMSIZES = [dtype.itemsize for dtype in DTYPES.values()]  # by the kernels' number of a type
BUCKETS = {"double": 8, "float": 4, "Half": 2, "Bfloat16": 2}
CHARS = {"char": 1, "short": 2, "int": 4, "long long": 8}


def pack(expression, tensors, blocks, scale, finite):
    """Tensors are read, the bucket is written."""
    yield from moved(expression, tensors, blocks, bucket_written=True)
    if not isinstance(finite, int) and finite is not None:
        yield finite.data.ptr, 1, True


def unpack(expression, tensors, blocks, scale):
    """The bucket is read, tensors are written."""
    yield from moved(expression, tensors, blocks, bucket_written=False)


def moved(expression, tensors, blocks, bucket_written):
    yield from whole(tensors, blocks)
    for (tensor, bucket, kind), start, stop in parts(tensors, blocks):
        yield place(tensor, start, stop, ITEMSIZES[kind], not bucket_written)
        yield place(bucket, start, stop, bucket_itemsize(expression), bucket_written)


def update(expression, parameters, blocks, *numbers):
    """Values and the slots that a rule has are written, the bucket is read."""
    yield from whole(parameters, blocks)
    for (value, grad, *slots, kind), start, stop in parts(parameters, blocks):
        yield place(value, start, stop, ITEMSIZES[kind], True)
        yield place(grad, start, stop, bucket_itemsize(expression), False)
        for slot in filter(None, slots):
            yield place(slot, start, stop, 8 if kind == 0 else 4, True)


def accumulate(expression, dst, left, right, count, part):
    """dst = left op right."""
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


def element_itemsize(expression):
    name = expression.partition("<")[2].partition(",")[0]
    return BUCKETS.get(name) or CHARS[name.removeprefix("unsigned ").removeprefix("signed ")]


def bucket_itemsize(expression):
    return BUCKETS[expression.partition("<")[2].rstrip("> ")]


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
    "pack": pack,
    "unpack": unpack,
    "update_sgd": update,
    "update_adam": update,
    "accumulate": accumulate,
    "accumulate_all": accumulate_all,
}
