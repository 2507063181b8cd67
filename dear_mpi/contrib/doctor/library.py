import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.launch.launcher import child_environment

LOAD = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from dear_mpi.collectives.launch.cuda_aware import loaded
print("" if MPI.get_vendor()[0] == "Open MPI" or loaded("libpmix") else MPI.get_vendor()[0])
"""


@dataclass(frozen=True)
class MpiFacts:
    """``device``: MPICH's, else ""; ``threads_suffice``: one thread at a time may call MPI, as the engine needs."""

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
    """Collective: return this rank's facts; MPI must have started."""
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

    A child tries: such a library ends a process that Open MPI's mpirun started.
    """
    how: dict[str, Any] = {"env": child_environment(os.environ), "capture_output": True, "text": True, "timeout": 60}
    try:
        return subprocess.run([sys.executable, "-c", LOAD], check=True, **how).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
