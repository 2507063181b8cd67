"""Choose the implementation of the kernels by the type of the array that they are given.

Callers say ``pack(...)``; whether NumPy or another library does it follows from the buffer. A new kind of array
joins with one line in ``BACKENDS``, and no caller changes.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.choose import choose

__all__ = ["BACKENDS", "kernels_for"]

BACKENDS = {"numpy": "dear_mpi.kernels.reference"}


def kernels_for(array: Array) -> ModuleType:
    """The module of kernels for this kind of array; it has the functions of ``reference.py``.

    Raises:
        ValueError: there are no kernels for arrays of this library.
    """
    return importlib.import_module(choose("array library", library_of(array), BACKENDS))
