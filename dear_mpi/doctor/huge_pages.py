"""Whether memory that processes share can have huge pages: the kernel's settings, and a trial.

Messages from shared memory with pages of 4 KiB take up to twice as long, where MPI lets the kernel copy them (CMA).
"""

import ctypes
import mmap
import os
from pathlib import Path

__all__ = ["shared_huge_pages"]

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MADV_COLLAPSE = 25  # Linux 6.1
MAP_FIXED = 0x10


def shared_huge_pages(folder: Path = SETTINGS) -> tuple[bool, str]:
    """Whether they can be had, and what the kernel is set to."""
    settings = {name: chosen(folder / name) for name in ("enabled", "shmem_enabled")}
    said = ", ".join(f"{name} {value}" for name, value in settings.items() if value)
    problem = trial(folder)
    return not problem, f"{problem or 'collapsed on demand'} ({said or 'no such kernel settings'})"


def chosen(file: Path) -> str:
    """The word in brackets.

    >>> chosen(Path("/no/such/file"))
    ''
    """
    try:
        return file.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return ""


def trial(folder: Path) -> str:
    """Why a file in memory, mapped where a huge page begins, gets none; empty if it does."""
    try:
        nbytes = int((folder / "hpage_pmd_size").read_text())
        descriptor = os.memfd_create("dear-mpi-doctor")
    except (OSError, ValueError, AttributeError) as error:
        return f"none: {error}"
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        return collapse(descriptor, nbytes)
    except OSError as error:
        return f"none: {error.strerror}"
    finally:
        os.close(descriptor)


def collapse(descriptor: int, nbytes: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    access = mmap.PROT_READ | mmap.PROT_WRITE
    room = libc.mmap(None, 2 * nbytes, access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    start = -(-room // nbytes) * nbytes
    try:
        libc.mmap(start, nbytes, access, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0)
        failed = libc.madvise(start, nbytes, MADV_COLLAPSE)
        return f"none: MADV_COLLAPSE says {os.strerror(ctypes.get_errno())}" if failed else ""
    finally:
        libc.munmap(room, 2 * nbytes)
