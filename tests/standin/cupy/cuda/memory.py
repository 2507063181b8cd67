"""Raw memory: what ``cupy.ndarray(shape, dtype, memptr)`` and NumPy's ``frombuffer`` are laid over."""

import ctypes

from cupy import order, storage
from cupy.cuda.device import Device
from cupy.cuda.stream import current_lane
from cupy.storage import here

PINNED_UNIT = 512  # CuPy's pinned pool rounds up too: NumPy's frombuffer needs a count


class Memory:
    """Device memory for several arrays. In the order of a kernel's accesses it counts as a "slab"."""

    def __init__(self, size, kind="slab"):
        self.allocation = storage.Allocation(size, kind, here.device, current_lane())
        self.size, self.device_id = size, here.device

    @classmethod
    def over(cls, allocation):
        memory = cls.__new__(cls)
        memory.allocation = allocation
        memory.size, memory.device_id = allocation.shadow.nbytes, allocation.shadow.device
        return memory

    @property
    def ptr(self):
        return self.allocation.shadow.base

    @property
    def device(self):
        return Device(self.device_id)


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def __int__(self):
        return self.ptr

    @property
    def device(self):
        return self.mem.device


class MemoryPool:
    """The interface of a pool; memory goes back to the system as soon as nothing refers to it."""

    def free_all_blocks(self, stream=None):
        with order.lock:
            storage.reap()

    def used_bytes(self):
        return storage.used_bytes()


pool = MemoryPool()


def alloc_pinned_memory(size):
    """An object with ``ptr``, ``size()`` and the buffer protocol, over page-locked memory.

    A ctypes array, because before Python 3.12 no class written in Python can offer the buffer protocol.
    """
    size = -(-size // PINNED_UNIT) * PINNED_UNIT
    kind = type("PinnedMemoryPointer", (ctypes.c_char * size,), {"size": lambda self: size})
    allocation = storage.pinned(size)
    memory = kind.from_address(allocation.shadow.base)
    memory.mem, memory.ptr = allocation, allocation.shadow.base
    return memory
