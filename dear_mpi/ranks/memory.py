"""The memory that a host has: what cannot find room there is refused before the system kills it."""

import math
import resource
from contextlib import suppress
from pathlib import Path

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
