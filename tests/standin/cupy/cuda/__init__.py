"""``cupy.cuda`` of the stand-in: devices, streams, events and memory."""

from cupy.cuda import device, memory, runtime, stream
from cupy.cuda.device import Device
from cupy.cuda.memory import Memory, MemoryPointer, MemoryPool, alloc_pinned_memory
from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time

__all__ = ["Device", "Event", "Memory", "MemoryPointer", "MemoryPool", "Stream", "alloc_pinned_memory", "device"]
__all__ += ["get_current_stream", "get_elapsed_time", "memory", "runtime", "stream"]
