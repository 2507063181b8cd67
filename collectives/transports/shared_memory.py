"""Memory that the other processes of a host can reach: anonymous files in memory, which peers map by their descriptor.

A block is made by ``memfd_create``; a peer opens it as ``/proc/PID/fd/N``. So there is no limit but the memory itself
(``/dev/shm`` is small in many containers), and nothing is left behind when a process dies. Where peers may not open
each other's files (other containers, other users), there is no shared memory.

MPI libraries copy between processes page by page (cross-memory attach), so that pages of 4 KiB cost up to half of a
ring's speed; docs/benchmarks has the figures. A huge page must begin at a border of 2 MiB both in the file and in the
address space, and Python's ``mmap`` takes no address: so the C library is called.
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
    """The bytes of a file, to be read and written; they begin at a border of 2 MiB. Raises OSError."""
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
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
    return address


def collapse(block: Array) -> str:
    """Ask the system to keep a block in huge pages; why it has none, or an empty text. Only time is lost then."""
    for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
        failed = libc().madvise(block.ctypes.data, block.nbytes, advice)
    return f"none: MADV_COLLAPSE says {os.strerror(ctypes.get_errno())}" if failed else ""


@dataclass(frozen=True)
class Region:
    """Where an array is, in terms that a peer understands: bytes from ``start`` in a file of a process."""

    pid: int
    descriptor: int
    name: str
    nbytes: int  # of the whole file
    start: int = 0

    def open(self) -> Array:
        """The whole block as bytes, mapped into this process; raises OSError where that cannot be."""
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if self.name not in os.readlink(path):  # the number is that of a process in another container
            raise OSError(f"{path} is another file than {self.name}")
        descriptor = os.open(path, os.O_RDWR)
        try:
            return map_aligned(descriptor, self.nbytes)
        finally:
            os.close(descriptor)


class SharedMemory:
    """The blocks of this process, and the peers' blocks that it has mapped; both live as long as they are in use."""

    def __init__(self) -> None:
        self.own: dict[int, Region] = {}  # by address
        self.mapped: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()  # by name

    def allocate(self, nbytes: int) -> Array:
        """A block of zero bytes in shared memory; if the system gives none, in memory that peers cannot reach."""
        try:
            name = f"dear-mpi-{secrets.token_hex(8)}"
            descriptor, block = file_in_memory(name, nbytes)
        except (AttributeError, OSError):  # not Linux, forbidden in this container, or no byte was asked for
            return np.zeros(nbytes, np.uint8)
        if nbytes >= HUGE_BYTES:
            collapse(block)
        self.own[block.ctypes.data] = Region(os.getpid(), descriptor, name, nbytes)
        weakref.finalize(block, self.forget, block.ctypes.data, descriptor)
        return block

    def forget(self, address: int, descriptor: int) -> None:
        """The block is no longer in use here; peers may still have it."""
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
        """A peer's array, of the count and type of this one; raises as ``Region.open``."""
        block = self.mapped.get(region.name)
        if block is None:
            block = self.mapped[region.name] = region.open()
        return block[region.start : region.start + like.nbytes].view(like.dtype)
