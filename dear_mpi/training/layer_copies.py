"""Does a layer compute with the memory that its values were moved from, instead of ``parameter.value``?

It would never see an update. Copies of it run, forward and backward, while that memory is full of other numbers, and
what they return and write is compared: with a right layer it does not depend on these numbers. Two fillings have
opposite signs, so that no mask, such as max(h, 0), hides both. The first filling is used again at the end: a layer that
draws random numbers then differs from itself. Such a layer, or one that cannot be copied, runs forward while the memory
is full of NaN.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import Layer

FILLINGS = 1.0, -3.0, 1.0
ALONE = Lock()  # ranks that are threads may share the memory


class Copies:
    """Copies of a layer, which share its parameters; what is ``left`` of memory is as before when a call returns."""

    def __init__(self, layer: Layer, left: Sequence[Array]) -> None:
        self.layer, self.left, self.copies = layer, left, [layer] * len(FILLINGS)
        shared = [*layer.parameters, *left]
        self.useful = False
        with suppress(Exception):  # whatever a user's layer holds that cannot be copied
            self.copies = self.each(lambda own: copy.deepcopy(own, {id(each): each for each in shared}))
            self.useful = True

    def forward(self, x: Array) -> tuple[Array, bool]:
        """Run the layer; its output, and whether that depends on what the memory is filled with."""
        stale = self.differ(lambda layer: [layer.forward(x.copy())])
        if stale or self.useful:
            return self.layer.forward(x), stale
        y = self.filled(math.nan, lambda: self.layer.forward(x))
        return y, has_nan(y) and not has_nan(x)

    def differ(self, run: Callable[[Layer], Sequence[Any]]) -> bool:
        """Whether the arrays that a call makes of each copy depend on what the memory is filled with."""
        if not self.useful:
            return False
        first, other, again = self.each(run)
        random, stale = not alike(first, again), not alike(first, other)
        self.useful = not random and not stale
        return stale and not random

    def each(self, run: Callable[[Layer], Any]) -> list[Any]:
        pairs = zip(FILLINGS, self.copies, strict=True)
        return [self.filled(filling, partial(run, layer)) for filling, layer in pairs]

    def filled(self, filling: float, run: Callable[[], Any]) -> Any:
        """What a call returns, while the memory is full of other numbers."""
        with ALONE:
            before = [array.copy() for array in self.left]
            for array, value in zip(self.left, before, strict=True):
                array[...] = filling * (1.5 - value)  # also where all values are 0, or 1
            try:
                return run()
            finally:
                for array, value in zip(self.left, before, strict=True):
                    array[...] = value


def has_nan(array: Array) -> bool:
    return bool(array_module(array).isnan(array).any())


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether arrays are equal but for rounding, which may depend on where an array begins in memory."""
    pairs = zip(some, others, strict=True)
    return not any(far(to_host(one), to_host(other)) for one, other in pairs if hasattr(one, "shape"))


def far(one: Array, other: Array) -> bool:
    """Whether they differ by more than rounding; what is not finite has no rounding, and no part in the scale."""
    if one.shape != other.shape:
        return True
    with np.errstate(all="ignore"):
        first, second = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        most = np.maximum(abs(first), abs(second)).max(initial=0.0, where=finite)
        return not np.allclose(first, second, rtol=0, atol=most * 10.0**-one.itemsize, equal_nan=True)
