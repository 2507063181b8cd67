"""What the MPI library in this process says about itself and about this rank's place, for ``dear-mpi doctor``."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MpiFacts", "loaded", "mpi_facts", "without_pmix"]

# Loads the library, and does not start it.
LOAD = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from dear_mpi.collectives.mpi_facts import loaded
print("" if MPI.get_vendor()[0] == "Open MPI" or loaded("libpmix") else MPI.get_vendor()[0])
"""


@dataclass(frozen=True)
class MpiFacts:
    """``library`` is the first line of its version string; ``device`` what MPICH calls so, and empty elsewhere."""

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


def mpi_facts() -> MpiFacts:
    """Collective: starts MPI, unless it is started.

    Raises:
        ImportError, RuntimeError: there is no MPI library, or mpi4py cannot load it.
    """
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
        threads_suffice=level >= MPI.THREAD_SERIALIZED,  # an engine's thread calls MPI
        rank=MPI.COMM_WORLD.Get_rank(),
        size=MPI.COMM_WORLD.Get_size(),
        host=MPI.Get_processor_name(),
        node_rank=rank,
        node_size=size,
    )


def without_pmix() -> str | None:
    """The name of the MPI library that would be loaded, if it does not speak PMIx.

    Such a library ends a process that Open MPI's mpirun started, instead of raising an error: so a child looks.
    """
    try:
        job = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return job.stdout.strip() or None if job.returncode == 0 else None


def loaded(name: str, maps: Path = Path("/proc/self/maps")) -> str | None:
    """The path of a shared library, such as ``libucp``, if it is in this process."""
    try:
        found = re.search(rf"/.*/{re.escape(name)}(?:-\w+)?\.so\S*", maps.read_text())
    except OSError:
        return None
    return found[0] if found else None
