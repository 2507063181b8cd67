"""Further plans of a bucket, which schedules name among their ``extras``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.line.bound import BoundBucket


def a_byte_for_each_tensor(bound: BoundBucket, slab: Slab) -> Array:
    """What ranks combine to see that all tensors of a bucket are ready everywhere."""
    bucket = bound.bucket
    return slab.empty(len(bound.arena.layout.tensors(bucket.start, bucket.stop)), np.dtype("u1"))


@dataclass(frozen=True)
class Extra:
    """A collective beside the collectives of gradients.

    Attributes:
        travels: what it sends, of a bucket with its memory, or taken from a slab.
        options: of ``make_plan``, in place of the options for gradients.
        few: whether it sends so few bytes that all of them cost nothing.
    """

    collective: str
    travels: Callable[[BoundBucket, Slab], Array]
    options: Mapping[str, Any] = field(default_factory=dict)
    few: bool = False


EXTRAS: Mapping[str, Extra] = {
    "negotiation": Extra("all_reduce", a_byte_for_each_tensor, {"op": "min", "algorithm": "auto"}, few=True),
    "second all_gather": Extra("all_gather", lambda bound, slab: bound.values),
}
