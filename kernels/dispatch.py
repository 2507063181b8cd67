"""Choose the implementation of the kernels by the type of the arrays that they are given.

Callers say ``packer``; whether NumPy or another library does it follows from the arrays. A new library joins with a
module that has the functions of ``reference.py`` and a line in ``KERNELS``. No caller of a kernel changes.
"""

import importlib
from types import ModuleType

from dear_mpi.kernels.array import KERNELS, Array, library_of
from dear_mpi.kernels.lookup import lookup


def kernels_for(*arrays: Array) -> ModuleType:
    """The module of kernels for these arrays: a GPU's if one of them is there; the others may be pinned host memory.

    Raises:
        ValueError: there are no kernels for arrays of this library.
    """
    libraries = [library_of(array) for array in arrays]
    library = next((name for name in libraries if name != "numpy"), "numpy")
    return importlib.import_module(lookup("array library", library, KERNELS))
