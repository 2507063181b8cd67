import math
import platform
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

CPUS = Path("/proc/cpuinfo")
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def read(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""


def cpu_model() -> str:
    lines = read(CPUS).splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def system() -> str:
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_bytes() -> float:
    """Return the memory that this process can still get; infinite if unknown."""
    found = [math.inf]
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].removesuffix("kB")))
    with suppress(OSError, KeyError, ValueError):  # "max" without a limit
        limit = int((GROUP / "memory.max").read_text())
        found.append(limit)
        used = int((GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        cached = int(stat["active_file"]) + int(stat["inactive_file"])  # file caches, dropped if memory is short
        found.append(limit - used + cached)
    return min(found)


def check_room(what: str, nbytes: int, ranks: int) -> None:
    """Raise a ValueError if ``ranks`` ranks of this host lack memory for ``nbytes`` each."""
    available = available_bytes()
    if ranks * nbytes > available:
        needs = f"needs at least {ranks * nbytes / 2**30:.1f} GiB for the ranks of a host ({ranks})"
        raise ValueError(f"{what} {needs}, where {available / 2**30:.1f} GiB are available")


def versions() -> dict[str, str | None]:
    """Return versions of Python and loaded packages; threads have no mpi4py."""
    mpi4py = sys.modules.get("mpi4py")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": None if mpi4py is None else str(mpi4py.__version__),
    }
