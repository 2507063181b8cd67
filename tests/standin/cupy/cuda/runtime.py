"""The part of CUDA's runtime API that takes plain addresses and stream pointers."""

import ctypes
import os

from cupy import order, storage
from cupy.storage import here

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
hostAllocDefault, hostAllocPortable, hostAllocMapped, hostAllocWriteCombined = 0, 1, 2, 4
streamDefault, streamNonBlocking, streamLegacy, streamPerThread = 0, 1, 1, 2

# Which side of each kind of copy must be device memory.
DEVICE_SIDES = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}

owners = {}  # address -> what malloc and hostAlloc made


class CUDARuntimeError(RuntimeError):
    """An error code of the runtime; the text begins with its name."""


def getDeviceCount():
    return int(os.environ.get("STANDIN_DEVICES", "1"))


def getDevice():
    return here.device


def setDevice(device):
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal {device}")
    here.device, here.chosen = device, True


def getDeviceProperties(device):
    return {
        "name": b"stand-in",
        "totalGlobalMem": 8 << 30,
        "multiProcessorCount": 4,
        "major": 9,
        "minor": 0,
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiProcessor": 2048,
        "maxGridSize": (2**31 - 1, 65535, 65535),
        "sharedMemPerBlock": 48 << 10,
        "l2CacheSize": 32 << 20,
        "memoryClockRate": 1_000_000,
        "memoryBusWidth": 1024,
        "pciBusID": device,
        "pciDeviceID": 0,
        "pciDomainID": 0,
    }


def deviceGetPCIBusId(device):
    return f"0000:{device:02x}:00.0"


def driverGetVersion():
    return 12080


def runtimeGetVersion():
    return 12080


def memGetInfo():
    total = getDeviceProperties(0)["totalGlobalMem"]
    return total - storage.used_bytes(), total


def deviceSynchronize():
    with order.lock:
        for lane in order.lanes:
            if lane.device == here.device:
                order.host_joins(lane.clock)


def streamSynchronize(stream):
    order.host_joins(lane_of(stream).clock)


def malloc(nbytes):
    allocation = storage.Allocation(nbytes, "slab", here.device, lane_of(0))
    owners[allocation.shadow.base] = allocation
    return allocation.shadow.base


def hostAlloc(nbytes, flags=0):
    allocation = storage.pinned(nbytes)
    owners[allocation.shadow.base] = allocation
    return allocation.shadow.base


def free(address):
    """As CUDA's: waits for the device first."""
    deviceSynchronize()
    if address:
        owners.pop(address)


freeHost = free


def hostRegister(address, nbytes, flags=0):
    """Pin memory that the caller has; it must stay until ``hostUnregister``."""
    storage.register(storage.Shadow(address, nbytes, "pinned", 0, None))


def hostUnregister(address):
    storage.forget(storage.registry[address])


def memcpyAsync(dst, src, nbytes, kind, stream):
    """A copy on a stream; as with CUDA, one to memory that is not pinned is over when the call returns."""
    if nbytes == 0:
        return
    lane = lane_of(stream)
    to, origin = touched(dst, nbytes), touched(src, nbytes)
    if kind != memcpyDefault:
        sides = tuple(span is not None and span[0].kind != "pinned" for span in (to, origin))
        if sides != DEVICE_SIDES[kind]:
            raise CUDARuntimeError(f"cudaErrorInvalidValue: device memory on the sides {sides} (to, from) of {kind=}")
    elif to is None or origin is None:  # CUDA would take pageable memory: here it is an array that is gone
        raise CUDARuntimeError(
            f"cudaErrorInvalidValue: {dst if to is None else src:#x} is no live device or pinned memory"
        )
    accesses = [(*span, write) for span, write in ((origin, False), (to, True)) if span is not None]
    order.operation("memcpyAsync", lane, accesses)
    ctypes.memmove(dst, src, nbytes)
    if to is None:
        order.host_joins(lane.clock)


def memcpy(dst, src, nbytes, kind):
    """A copy on the null stream that the host waits for."""
    memcpyAsync(dst, src, nbytes, kind, 0)
    streamSynchronize(0)


def memsetAsync(address, value, nbytes, stream):
    if nbytes == 0:
        return
    lane, span = lane_of(stream), touched(address, nbytes)
    if span is None:
        raise CUDARuntimeError(f"cudaErrorInvalidValue: {address:#x} is no device memory")
    order.operation("memsetAsync", lane, [(*span, True)])
    ctypes.memset(address, value, nbytes)


def memset(address, value, nbytes):
    memsetAsync(address, value, nbytes, 0)


def touched(address, nbytes):
    """The span of an address, inside one allocation."""
    span = storage.span(int(address), nbytes)
    if span is not None and span[2] > span[0].base + span[0].nbytes:
        raise CUDARuntimeError(f"cudaErrorInvalidValue: {nbytes} bytes reach past the allocation's {span[0].nbytes}")
    return span


def lane_of(stream):
    from cupy.cuda import stream as streams  # it needs our error class

    return streams.lane_of(stream)
