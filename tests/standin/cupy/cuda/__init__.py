"""``cupy.cuda`` of the stand-in: devices, streams, events and memory."""

from cupy.cuda import device, memory, runtime, stream
from cupy.cuda.device import Device, get_device_id
from cupy.cuda.memory import Memory, MemoryPointer, MemoryPool, alloc, alloc_pinned_memory, set_allocator
from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "Device",
    "Event",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "Stream",
    "alloc",
    "alloc_pinned_memory",
    "device",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "is_available",
    "memory",
    "runtime",
    "set_allocator",
    "stream",
]


def is_available():
    return runtime.getDeviceCount() > 0
