"""Further plans of a bucket, which schedules name among their ``extras``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.line.bound import BoundBucket

__all__ = ["EXTRAS", "Extra"]


def a_byte_for_each_tensor(bound: BoundBucket, slab: Slab) -> Array:
    """What ranks combine to see that all tensors of a bucket are ready everywhere."""
    bucket = bound.bucket
    return slab.empty(len(bound.arena.layout.tensors(bucket.start, bucket.stop)), np.dtype("u1"))


@dataclass(frozen=True)
class Extra:
    """A collective beside those of gradients.

    Attributes:
        travels: what it sends, of a bucket with its memory, or taken from a slab.
    """

    collective: str
    op: str
    travels: Callable[[BoundBucket, Slab], Array]


EXTRAS: Mapping[str, Extra] = {
    "negotiation": Extra("all_reduce", "min", a_byte_for_each_tensor),
    "second all_gather": Extra("all_gather", "sum", lambda bound, slab: bound.values),
}
