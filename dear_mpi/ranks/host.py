"""The host of this rank: its kernel and processors, the memory that it has left, the software that is loaded."""

import math
import platform
import resource
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

CPUS = Path("/proc/cpuinfo")
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")  # TCP's
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def read(file: Path) -> str:
    """What the kernel has in one of its files; "" if it cannot be read."""
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
    """The memory that this host can still give to this process; infinite where the system does not say it."""
    found = [math.inf]
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].removesuffix("kB")))
    with suppress(OSError, KeyError, ValueError):  # "max" where there is no limit
        limit = int((GROUP / "memory.max").read_text())
        found.append(limit)
        used = int((GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        cached = int(stat["active_file"]) + int(stat["inactive_file"])  # files, dropped when memory is short
        found.append(limit - used + cached)
    return min(found)


def page_faults() -> int:
    """How often this process has touched a page of memory that the system had to give it first."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def check_room(what: str, nbytes: int, ranks: int) -> None:
    """A ValueError if so many ranks of this host need more than it has, each of them so many bytes."""
    available = available_bytes()
    if ranks * nbytes > available:
        needs = f"needs at least {ranks * nbytes / 2**30:.1f} GiB for the ranks of a host ({ranks})"
        raise ValueError(f"{what} {needs}, where {available / 2**30:.1f} GiB are available")


def versions() -> dict[str, str | None]:
    """Of Python and of what it has loaded; a job of threads has no mpi4py."""
    mpi4py = sys.modules.get("mpi4py")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": None if mpi4py is None else str(mpi4py.__version__),
    }
