"""Choose the implementation of the kernels by the type of the arrays that they are given.

Callers say ``pack(...)``; whether NumPy or another library does it follows from the arrays. A new kind of array
joins with one line in ``KERNELS``, and no caller changes. A backend has the functions of ``reference.py``.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.lookup import lookup

__all__ = ["KERNELS", "kernels_for"]

KERNELS = {"numpy": "dear_mpi.kernels.reference", "cupy": "dear_mpi.kernels.cuda_backend"}


def kernels_for(*arrays: Array) -> ModuleType:
    """The module of kernels for these arrays: the device's, if one of them is there and the others are pinned.

    Raises:
        ValueError: there are no kernels for arrays of this library.
    """
    libraries = [library_of(array) for array in arrays]
    library = next((name for name in libraries if name != "numpy"), "numpy")
    return importlib.import_module(lookup("array library", library, KERNELS))
