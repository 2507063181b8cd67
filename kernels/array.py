"""Arrays of NumPy and of CuPy: of which library one is, which kernels work on it, and when these are done.

Callers never say which library: the array's own type does. A new library joins with a module that has the functions of
``reference.py``, and a line in ``KERNELS``.

Kernels on a GPU are only launched when a call returns; they run later, in the order of their stream. An **event**
marks a point in that order. Before a buffer is used outside the stream that wrote it, above all by MPI, the host has
to wait for an event of that stream. Without the wait, numbers are wrong now and then, and there is no error.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from dear_mpi.kernels.lookup import lookup

# Every array library that we know, with the module of its kernels.
KERNELS = {"numpy": "dear_mpi.kernels.reference", "cupy": "dear_mpi.kernels.cuda_backend"}

# A CuPy array has the same interface; the annotation says NumPy because that is what type checkers know.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def library_of(array: Array) -> str:
    """The name of the library whose array this is: ``numpy``, say."""
    return type(array).__module__.partition(".")[0]


def array_module(array: Array) -> ModuleType:
    """The library (``numpy`` or ``cupy``) whose functions take this array; ValueError if it is of neither."""
    lookup("array library", library_of(array), KERNELS)
    return sys.modules[library_of(array)]  # which made the array


def kernels_for(*arrays: Array) -> ModuleType:
    """The module of kernels for these arrays: a GPU's if one of them is there, as the others may be pinned host memory;
    ValueError: there are none for this library."""
    libraries = [library_of(array) for array in arrays]
    library = next((name for name in libraries if name != "numpy"), "numpy")
    return importlib.import_module(lookup("array library", library, KERNELS))


def to_host(array: Array) -> Array:
    """The array itself if it is NumPy's, else a copy on the host; the call waits for the current stream."""
    return array if library_of(array) == "numpy" else array.get()  # type: ignore[attr-defined]


class Event(Protocol):
    """A point in the order of a stream, set anew by each ``record``, and awaited as messages of MPI are."""

    def record(self) -> None:
        """Mark what this thread has launched so far on its current stream."""

    def Wait(self) -> None:
        """Block the host until that is over, with the interpreter lock released."""

    def Test(self) -> bool:
        """Whether it is over."""


def event_for(array: Array) -> Event | None:
    """An event for the kernels that work on this array; None for host arrays, whose kernels end when they return."""
    event: Event | None = kernels_for(array).event()
    return event


def synchronize(array: Array) -> None:
    """Block until what this thread has launched on its current stream is over; at once for a host array."""
    event = event_for(array)
    if event is not None:
        event.record()
        event.Wait()
