"""The software and the network of a rank's host, which the doctor compares with those of the other hosts."""

import platform
import sys
from pathlib import Path

import numpy as np

from dear_mpi.ranks.kernel import read

INTERFACES = Path("/sys/class/net")
UP = ("up", "unknown")  # some that are up, such as tunnels, do not know it


def software(mpi_library: str | None) -> dict[str, str]:
    """Versions of what this process has imported; mpi4py where MPI could be started."""
    return {
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "mpi4py": getattr(sys.modules.get("mpi4py"), "__version__", "none"),
        "the MPI library": mpi_library or "none",
        "dear-mpi": sys.modules["dear_mpi"].__version__,
    }


def mtus(folder: Path = INTERFACES) -> dict[str, int]:
    """The largest packets, in bytes, of each interface that is up; but for the loopback, which leads nowhere."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []  # only Linux has it
    up = [path for path in found if path.name != "lo" and read(path / "operstate") in UP]
    return {path.name: int(text) for path in up if (text := read(path / "mtu")).isdigit()}
