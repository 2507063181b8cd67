"""Share memory between a host's processes: anonymous files in memory, mapped by descriptor.

``memfd_create`` makes a block and a peer opens ``/proc/PID/fd/N``. So only memory is the limit (``/dev/shm`` is small
in many containers), and nothing outlives a process. Peers that may not open each other's files share nothing.

With 4 KiB pages MPI's copies between processes cost up to half of a ring's speed. A huge page starts at a multiple of
2 MiB in file and address space. ``mmap`` takes no address, so this calls the C library.
"""

import ctypes
import mmap
import os
import secrets
import weakref
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dear_mpi.kernels.array import Array, library_of

HUGE_BYTES = 2 << 20
MAP_FIXED, MADV_HUGEPAGE, MADV_COLLAPSE = 0x10, 14, 25  # Linux; Python names only MADV_HUGEPAGE


@cache
def libc() -> ctypes.CDLL:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


def map_aligned(descriptor: int, nbytes: int) -> Array:
    """Map a file for reading and writing, aligned to 2 MiB; raises OSError."""
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
    # Not at Python's exit: arrays may be in use.
    weakref.finalize(memory, libc().munmap, base, reserved).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def file_in_memory(name: str, nbytes: int) -> tuple[int, Array]:
    descriptor = os.memfd_create(name)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)  # fails here without memory
        return descriptor, map_aligned(descriptor, nbytes)
    except OSError:
        os.close(descriptor)
        raise


def mapped(address: int | None) -> int:
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    return address


def collapse(block: Array) -> int:
    """Ask for huge pages; return 0, or -1 with an ``errno``."""
    for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
        failed: int = libc().madvise(block.ctypes.data, block.nbytes, advice)
    return failed


@dataclass(frozen=True)
class Region:
    """An array's place for peers: bytes from ``start`` in a process's file."""

    pid: int
    descriptor: int
    name: str
    nbytes: int
    start: int = 0

    def open(self) -> Array:
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if self.name not in os.readlink(path):  # this number belongs to a process in another container
            raise OSError(f"{path} is another file than {self.name}")
        descriptor = os.open(path, os.O_RDWR)
        try:
            return map_aligned(descriptor, self.nbytes)
        finally:
            os.close(descriptor)


class SharedMemory:
    """Blocks of this process, and of peers."""

    def __init__(self) -> None:
        self.own: dict[int, Region] = {}
        self.mapped: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()

    def allocate(self, nbytes: int) -> Array:
        """Return zeroed shared memory, or private if there is none."""
        try:
            name = f"dear-mpi-{secrets.token_hex(8)}"
            descriptor, block = file_in_memory(name, nbytes)
        except (AttributeError, OSError):  # impossible or forbidden here, or zero bytes
            return np.zeros(nbytes, np.uint8)
        if nbytes >= HUGE_BYTES:
            collapse(block)
        self.own[block.ctypes.data] = Region(os.getpid(), descriptor, name, nbytes)
        weakref.finalize(block, self.forget, block.ctypes.data, descriptor)
        return block

    def forget(self, address: int, descriptor: int) -> None:
        del self.own[address]
        os.close(descriptor)

    def find(self, array: Array) -> Region | None:
        if library_of(array) != "numpy":
            return None
        address = array.ctypes.data
        for start, region in self.own.items():
            if start <= address < start + region.nbytes:
                return replace(region, start=address - start)
        return None

    def view(self, region: Region, like: Array) -> Array:
        block = self.mapped.get(region.name)
        if block is None:
            block = self.mapped[region.name] = region.open()
        return block[region.start : region.start + like.nbytes].view(like.dtype)
