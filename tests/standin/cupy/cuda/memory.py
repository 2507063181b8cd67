"""Raw memory: what ``cupy.ndarray(shape, dtype, memptr)`` and NumPy's ``frombuffer`` are laid over."""

import ctypes

from cupy import order, storage
from cupy.cuda import runtime
from cupy.cuda.device import Device
from cupy.cuda.stream import current_lane, get_current_stream
from cupy.storage import here

PINNED_UNIT = 512  # CuPy's pinned pool rounds up too: NumPy's frombuffer needs a count


class OutOfMemoryError(MemoryError):
    """For ``except`` clauses; nothing raises it here."""


class Memory:
    """Device memory for several arrays. In the order of a kernel's accesses it counts as a "slab"."""

    def __init__(self, size, kind="slab"):
        self.allocation = storage.Allocation(size, kind, here.device, current_lane())
        self.size, self.device_id = size, here.device

    @classmethod
    def over(cls, allocation):
        """The memory under an array."""
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

    def __int__(self):
        return self.ptr


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def __int__(self):
        return self.ptr

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    @property
    def device(self):
        return self.mem.device

    @property
    def device_id(self):
        return self.mem.device_id

    def memset_async(self, value, size, stream=None):
        runtime.memsetAsync(self.ptr, value, size, (stream or get_current_stream()).ptr)

    memset = memset_async

    def copy_from_async(self, mem, size, stream=None):
        """From device memory or, as an address, from the host's."""
        source = mem.value if isinstance(mem, ctypes.c_void_p) else int(mem)
        runtime.memcpyAsync(self.ptr, source, size, runtime.memcpyDefault, (stream or get_current_stream()).ptr)

    copy_from_device_async = copy_from_host_async = copy_from_device = copy_from_async

    def copy_to_host_async(self, mem, size, stream=None):
        target = mem.value if isinstance(mem, ctypes.c_void_p) else int(mem)
        runtime.memcpyAsync(target, self.ptr, size, runtime.memcpyDefault, (stream or get_current_stream()).ptr)


def alloc(size):
    return MemoryPointer(Memory(size), 0)


class MemoryPool:
    """The interface of a pool; memory goes back to the system as soon as nothing refers to it."""

    def __init__(self, allocator=None):
        pass

    def malloc(self, size):
        return alloc(size)

    def free_all_blocks(self, stream=None):
        with order.lock:
            storage.reap()

    def used_bytes(self):
        return storage.used_bytes()

    total_bytes = used_bytes

    def free_bytes(self):
        return 0

    def set_limit(self, size=None, fraction=None):
        pass


pool = MemoryPool()


def set_allocator(allocator=None):
    """Accepted and ignored: arrays of the stand-in have an allocation each."""


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
