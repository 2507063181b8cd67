"""Map a file in memory so that huge pages can hold it.

MPI libraries copy between processes page by page (cross-memory attach), so that pages of 4 KiB cost up to half of a
ring's speed; docs/benchmarks has the figures. A huge page must begin at a border of 2 MiB both in the file and in the
address space, and Python's ``mmap`` takes no address: so the C library is called.
"""

import ctypes
import mmap
import os
import weakref
from functools import cache

import numpy as np

from dear_mpi.kernels.array import Array

HUGE_BYTES = 2 << 20
MAP_FIXED, MADV_HUGEPAGE, MADV_COLLAPSE = 0x10, 14, 25  # Linux; Python does not name the first and the last


@cache
def libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


def map_aligned(descriptor: int, nbytes: int) -> Array:
    """The bytes of a file, to be read and written; they begin at a border of 2 MiB.

    Raises:
        OSError: the file cannot be mapped.
    """
    reserved = nbytes + HUGE_BYTES
    base = mapped(libc().mmap(None, reserved, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    start = -(-base // HUGE_BYTES) * HUGE_BYTES
    access = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        mapped(libc().mmap(start, nbytes, access, mmap.MAP_SHARED | MAP_FIXED, descriptor, 0))
    except OSError:
        libc().munmap(base, reserved)
        raise
    memory = (ctypes.c_uint8 * nbytes).from_address(start)
    # Not when Python ends: then arrays may still be in use, and the system takes the memory back anyhow.
    weakref.finalize(memory, libc().munmap, base, reserved).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def file_in_memory(name: str, nbytes: int) -> tuple[int, Array]:
    """The descriptor and the bytes of a new file; raises OSError or (not on Linux) AttributeError if there is none."""
    descriptor = os.memfd_create(name)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # fails here and now if there is not so much memory
        return descriptor, map_aligned(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise


def mapped(address: int | None) -> int:
    """What ``mmap`` returned, if it is an address."""
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    return address


def collapse(block: Array) -> str:
    """Ask the system to keep a block in huge pages; why it has none, or an empty text. Only time is lost then."""
    for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
        failed = libc().madvise(block.ctypes.data, block.nbytes, advice)
    return f"none: MADV_COLLAPSE says {os.strerror(ctypes.get_errno())}" if failed else ""
