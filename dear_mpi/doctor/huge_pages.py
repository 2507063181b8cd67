"""Whether memory that processes share can have huge pages: the kernel's settings, and a trial.

Messages from shared memory with pages of 4 KiB take up to twice as long, where MPI lets the kernel copy them (CMA).
"""

import os
from pathlib import Path

from dear_mpi.collectives.transports.shared_memory import HUGE_BYTES, collapse, file_in_memory
from dear_mpi.doctor.settings import chosen

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")


def shared_huge_pages(folder: Path = SETTINGS) -> tuple[bool, str]:
    """Whether they can be had, and what the kernel is set to."""
    settings = {name: chosen(folder / name) for name in ("enabled", "shmem_enabled")}
    said = ", ".join(f"{name} {value}" for name, value in settings.items() if value)
    problem = trial()
    return not problem, f"{problem or 'collapsed on demand'} ({said or 'no such kernel settings'})"


def trial() -> str:
    """Why shared memory, made as plans make it, gets no huge page; empty if it does."""
    try:
        descriptor, block = file_in_memory("dear-mpi-doctor", HUGE_BYTES)
    except (OSError, AttributeError) as error:
        return f"none: {error}"
    os.close(descriptor)
    return collapse(block)
