"""What the kernel of this host says of itself and of its processors."""

import platform
from pathlib import Path

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
