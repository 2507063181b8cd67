"""Find the kernels for an array by its type, NumPy's or CuPy's, and wait for them.

A new library needs a module with the functions of ``reference.py`` and a line in ``KERNELS``.

A kernel call on a GPU returns before the kernel has run. Kernels run in the order of their stream. An **event** marks a
point in that order. Before another stream, or MPI, uses a buffer, the host must wait for an event of the stream that
wrote it: without the wait, results are sometimes wrong and no error is raised.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from dear_mpi.kernels.lookup import lookup

KERNELS = {"numpy": "dear_mpi.kernels.reference", "cupy": "dear_mpi.kernels.cuda_backend"}

# CuPy arrays have the same interface; type checkers know only NumPy's.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def library_of(array: Array) -> str:
    return type(array).__module__.partition(".")[0]


def array_module(array: Array) -> ModuleType:
    lookup("array library", library_of(array), KERNELS)
    return sys.modules[library_of(array)]  # imported: it made the array


def kernels_for(*arrays: Array) -> ModuleType:
    """Return the module of kernels for these arrays: a GPU's if one is on a GPU; others may be in pinned memory."""
    libraries = [library_of(array) for array in arrays]
    library = next((name for name in libraries if name != "numpy"), "numpy")
    return importlib.import_module(lookup("array library", library, KERNELS))


def to_host(array: Array) -> Array:
    return array if library_of(array) == "numpy" else array.get()  # type: ignore[attr-defined]


class Event(Protocol):
    """A point in the order of a stream. Wait for it as for an MPI request."""

    def record(self) -> None:
        """Mark the end of this thread's work on its current stream."""

    def Wait(self) -> None:
        """Block the host until then, with the interpreter lock released."""

    def Test(self) -> bool: ...


def event_for(array: Array) -> Event | None:
    """Return an event; None for host arrays, whose kernels complete before they return."""
    return kernels_for(array).event()


def synchronize(array: Array) -> None:
    event = event_for(array)
    if event is not None:
        event.record()
        event.Wait()
