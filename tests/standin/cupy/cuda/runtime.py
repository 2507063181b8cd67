"""The part of CUDA's runtime API that takes plain addresses and stream pointers."""

import ctypes
import os

from cupy import order, storage
from cupy.storage import here

memcpyDefault = 4


class CUDARuntimeError(RuntimeError):
    """An error code of the runtime; the text begins with its name."""


def getDeviceCount():
    return int(os.environ.get("STANDIN_DEVICES", "1"))


def setDevice(device):
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal {device}")
    here.device, here.chosen = device, True


def getDeviceProperties(device):
    return {"name": b"stand-in", "multiProcessorCount": 4, "totalGlobalMem": 8 << 30}


def deviceGetPCIBusId(device):
    return f"0000:{device:02x}:00.0"


def deviceSynchronize():
    with order.lock:
        for lane in order.lanes:
            if lane.device == here.device:
                order.host_joins(lane.clock)


def memcpyAsync(dst, src, nbytes, kind, stream):
    """A copy on a stream; as with CUDA, one to memory that is not pinned is over when the call returns."""
    if nbytes == 0:
        return
    lane = lane_of(stream)
    to, origin = touched(dst, nbytes), touched(src, nbytes)
    if to is None or origin is None:  # CUDA would take pageable memory: here it is an array that is gone
        gone = dst if to is None else src
        raise CUDARuntimeError(f"cudaErrorInvalidValue: {gone:#x} is no live device or pinned memory")
    order.operation("memcpyAsync", lane, [(*origin, False), (*to, True)])
    ctypes.memmove(dst, src, nbytes)


def touched(address, nbytes):
    span = storage.span(int(address), nbytes)
    if span is not None and span[2] > span[0].base + span[0].nbytes:
        raise CUDARuntimeError(f"cudaErrorInvalidValue: {nbytes} bytes reach past the allocation's {span[0].nbytes}")
    return span


def lane_of(stream):
    from cupy.cuda import stream as streams  # it needs our error class

    return streams.lane_of(stream)
