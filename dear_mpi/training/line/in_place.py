"""Values that code beside the layers still holds, or has changed in place."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import copier

Call = Callable[[], object]
READ = 1 << 18  # elements that are compared at a time


def held(array: Array) -> bool:
    """Whether any code beside the caller still holds the memory of an array of the host."""
    root = array if array.base is None else array.base
    own = 4 if array.base is None else 3  # the names here and in the caller, and the argument
    return isinstance(root, np.ndarray) and array.flags.writeable and sys.getrefcount(root) > own


def readers(line: Array, own: Array) -> list[Call]:
    """The calls that bring what an owner has changed to the line.

    In a type narrower than the line's, an unchanged value is the line's value, rounded. The line then keeps its own
    value, which is more exact.
    """
    if line.dtype == own.dtype:
        return [copier(line, own)]
    xp: Any = array_module(line)
    rounded, wide = (xp.empty(min(line.size, READ), array.dtype) for array in (own, line))
    bits = np.dtype(f"u{own.itemsize}")

    def reader(start: int) -> Call:
        theirs, mine = own[start : start + READ], line[start : start + READ]
        down, up = copier(rounded[: theirs.size], mine), copier(wide[: theirs.size], theirs)

        def read() -> None:
            down()
            up()
            changed = rounded[: theirs.size].view(bits) != theirs.view(bits)
            xp.copyto(mine, wide[: theirs.size], where=changed)

        return read

    return [reader(start) for start in range(0, line.size, READ)]
