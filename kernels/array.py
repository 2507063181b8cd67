"""Find the kernels for an array by its type, NumPy's or CuPy's, wait for them, and select the GPU.

A library has a line in ``KERNELS`` and a module with the functions of ``reference.py``.

A GPU's kernels run in the order of their stream; an **event** marks a point in it. Before another stream, or MPI, uses
a buffer, the host must wait for an event of the stream that wrote it: else results are sometimes wrong, without an
error.
"""

import contextlib
import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy as np

from dear_mpi.kernels.lookup import lookup

KERNELS = {"numpy": "dear_mpi.kernels.reference", "cupy": "dear_mpi.kernels.cuda_backend"}

# CuPy arrays have NumPy's interface.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def library_of(array: Array) -> str:
    return type(array).__module__.partition(".")[0]


def array_module(array: Array) -> ModuleType:
    lookup("array library", library_of(array), KERNELS)
    return sys.modules[library_of(array)]  # imported: it made the array


def kernels_for(*arrays: Array) -> ModuleType:
    """Return the GPU's kernels if an array is on one; others may be in pinned memory."""
    libraries = [library_of(array) for array in arrays]
    library = next((name for name in libraries if name != "numpy"), "numpy")
    return importlib.import_module(lookup("array library", library, KERNELS))


def to_host(array: Array) -> Array:
    return array if library_of(array) == "numpy" else array.get()  # type: ignore[attr-defined]


class Event(Protocol):
    def record(self) -> None:
        """Mark the end of this thread's work on its current stream."""

    def Wait(self) -> None:
        """Block with the interpreter lock released."""

    def Test(self) -> bool: ...


def event_for(array: Array) -> Event | None:
    """None for host arrays, whose kernels complete before they return."""
    return kernels_for(array).event()


def synchronize(array: Array) -> None:
    event = event_for(array)
    if event is not None:
        event.record()
        event.Wait()


@dataclass(frozen=True)
class Gpu:
    """``number``: in this process; ``address``: on the PCI bus, the same in all processes."""

    number: int
    count: int
    name: str
    address: str


def use_gpu(local_rank: int) -> None:
    """Select GPU ``local_rank`` modulo their number, before MPI starts, which binds to it."""
    # CuPy raises CUDA's as RuntimeErrors
    with contextlib.suppress(ImportError, RuntimeError, ZeroDivisionError):
        import cupy

        cupy.cuda.Device(local_rank % cupy.cuda.runtime.getDeviceCount()).use()


def current_gpu() -> Gpu:
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        if count == 0:
            raise RuntimeError("CUDA finds none")
        device = cupy.cuda.Device()
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"]
        return Gpu(int(device.id), count, name.decode() if isinstance(name, bytes) else name, device.pci_bus_id)
    except ImportError as error:
        lacking = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        why = "CuPy is not installed" if lacking else f"CuPy cannot be imported: {error}"
        raise ValueError(f"{why} (pip install cupy-cuda13x or -cuda12x: our extras cuda13, cuda12)") from None
    except RuntimeError as error:
        raise ValueError(f"there is no GPU that can be used: {error} (see what nvidia-smi shows)") from None


def device_array(memory: Any) -> Any:
    """View another library's GPU memory (DLPack) in CuPy. ValueError without CuPy."""
    current_gpu()
    import cupy

    return cupy.from_dlpack(memory)
