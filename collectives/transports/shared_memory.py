"""Memory that the other processes of a host can reach: anonymous files in memory, which peers map by their descriptor.

A block is made by ``memfd_create``; a peer opens it as ``/proc/PID/fd/N``. So nothing has a name in a file system,
there is no limit but the memory itself (``/dev/shm`` is small in many containers), and nothing is left behind when a
process dies. Where peers may not open each other's files (other containers, other users), there is no shared memory.
"""

import os
import secrets
import weakref
from dataclasses import dataclass, replace

import numpy as np

from dear_mpi.collectives.transports.huge_pages import HUGE_BYTES, collapse, file_in_memory, map_aligned
from dear_mpi.kernels.array import Array, library_of


@dataclass(frozen=True)
class Region:
    """Where an array is, in terms that a peer understands: bytes from ``start`` in a file of a process."""

    pid: int
    descriptor: int
    name: str
    nbytes: int  # of the whole file
    start: int = 0

    def open(self) -> Array:
        """The whole block as bytes, mapped into this process.

        Raises:
            OSError: it cannot be opened, or the process with this number is another one (in another container).
        """
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if self.name not in os.readlink(path):
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
        """Where an array is, if it is in one of this process's blocks."""
        if library_of(array) != "numpy":
            return None
        place = array.ctypes.data
        for address, region in self.own.items():
            if address <= place < address + region.nbytes:
                return replace(region, start=place - address)
        return None

    def view(self, region: Region, like: Array) -> Array:
        """A peer's array, of the count and type of this one.

        Raises:
            OSError: its memory cannot be mapped.
        """
        block = self.mapped.get(region.name)
        if block is None:
            block = self.mapped[region.name] = region.open()
        return block[region.start : region.start + like.nbytes].view(like.dtype)
