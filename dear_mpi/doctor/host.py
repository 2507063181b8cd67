"""The software and the network of a rank's host, which the doctor compares with those of the other hosts."""

import sys
from pathlib import Path

from dear_mpi.ranks.kernel import read
from dear_mpi.ranks.versions import versions

INTERFACES = Path("/sys/class/net")
UP = ("up", "unknown")  # some that are up, such as tunnels, do not know it
NAMES = {"python": "Python", "numpy": "NumPy"}  # of what has another one where versions are compared


def software(mpi_library: str | None) -> dict[str, str]:
    """Versions of what this process has imported; mpi4py where MPI could be started."""
    found = {NAMES.get(name, name): version for name, version in versions().items()}
    found |= {"the MPI library": mpi_library, "dear-mpi": str(sys.modules["dear_mpi"].__version__)}
    return {name: version or "none" for name, version in found.items()}


def mtus(folder: Path = INTERFACES) -> dict[str, int]:
    """The largest packets, in bytes, of each interface that is up; but for the loopback, which leads nowhere."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []  # only Linux has it
    up = [path for path in found if path.name != "lo" and read(path / "operstate") in UP]
    return {path.name: int(text) for path in up if (text := read(path / "mtu")).isdigit()}
