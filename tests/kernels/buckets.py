"""Buckets of the tests: tensors of given shapes side by side, each from a border of 16 bytes on."""

import math
from itertools import accumulate

from dear_mpi.kernels.slab import CHUNK_BYTES, TENSOR_BYTES, round_up


def borders(shapes, dtype):
    lengths = (round_up(math.prod(shape), TENSOR_BYTES // dtype.itemsize) for shape in shapes)
    return list(accumulate(lengths, initial=0))


def room(shapes, dtype):
    """The elements of a bucket, with padding at its end."""
    return round_up(borders(shapes, dtype)[-1] + 1, CHUNK_BYTES // dtype.itemsize)


def views(bucket, shapes):
    """One view for each tensor, of its shape."""
    spans = zip(borders(shapes, bucket.dtype)[:-1], shapes, strict=True)
    return [bucket[start : start + math.prod(shape)].reshape(shape) for start, shape in spans]
