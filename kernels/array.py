"""Which array library an array belongs to.

The kernels are called with NumPy or CuPy arrays and never ask the caller which: the array's own type says it.
CuPy is imported only when a CuPy array is seen, so a machine without CUDA never looks for it.
"""

import sys
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.kernels.lookup import lookup

__all__ = ["KERNELS", "Array", "array_module", "library_of", "to_host"]

# Every array library that we know, with the module of its kernels: see dispatch.py.
KERNELS = {"numpy": "dear_mpi.kernels.reference", "cupy": "dear_mpi.kernels.cuda_backend"}

# A CuPy array has the same interface; the annotation says NumPy because that is what type checkers know.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def library_of(array: Array) -> str:
    """The name of the library whose array this is.

    >>> library_of(np.zeros(3))
    'numpy'
    """
    return type(array).__module__.partition(".")[0]


def array_module(array: Array) -> ModuleType:
    """The library (``numpy`` or ``cupy``) whose functions take this array.

    Raises:
        ValueError: it is of neither.

    >>> array_module(np.zeros(3)).__name__
    'numpy'
    """
    library = library_of(array)
    lookup("array library", library, KERNELS)
    return sys.modules[library]  # which made the array


def to_host(array: Array) -> Array:
    """The array itself if it is NumPy's, else a copy on the host; the call waits for the current stream."""
    return array if library_of(array) == "numpy" else array.get()  # type: ignore[attr-defined]
