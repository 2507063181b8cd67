"""Memory: which addresses are a device's, which are pinned, and what happened to their bytes.

All of it is host memory. It is filled with 0xff when it is made, so that a float that nobody wrote is not a number.
"""

import bisect
import threading
import weakref
from collections import deque

import numpy as np

from cupy import order

ALIGNMENT = 512  # that of cudaMalloc and of CuPy's pool

registry = {}  # base address -> Shadow
bases = []  # sorted
dead = deque()  # shadows whose memory is gone; a finalizer runs anywhere, also in the middle of the work on `registry`


class Shadow:
    """What is known of one allocation.

    ``kind`` is "device", "slab" (raw device memory, which several arrays share) or "pinned"; ``lane`` the stream that
    made it, ``records`` and ``uses`` belong to ``order``.
    """

    def __init__(self, base, nbytes, kind, device, lane):
        self.base, self.nbytes, self.kind, self.device, self.lane = base, nbytes, kind, device, lane
        self.records, self.uses = [], []


class Allocation:
    """Owns memory: it lives as long as a view of it does (NumPy keeps it as the base of its views)."""

    def __init__(self, nbytes, kind, device=0, lane=None):
        self.raw = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
        base = -(-self.raw.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.shadow = Shadow(base, nbytes, kind, device, lane)
        self.__array_interface__ = {"data": (base, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        register(self.shadow)
        weakref.finalize(self, dead.append, self.shadow).atexit = False

    def bytes(self):
        return np.asarray(self)


def register(shadow):
    with order.lock:
        reap()
        registry[shadow.base] = shadow
        bisect.insort(bases, shadow.base)


def forget(shadow):
    with order.lock:
        if registry.get(shadow.base) is shadow:
            del registry[shadow.base]
            del bases[bisect.bisect_left(bases, shadow.base)]
            order.freed(shadow)


def reap():
    """Forget memory that is gone: before an address is looked up, and before it can be given out again."""
    while dead:
        forget(dead.popleft())


order.before_host_learns.append(reap)


def find(address):
    """The live allocation that an address lies in, or None."""
    with order.lock:
        reap()
        index = bisect.bisect_right(bases, address) - 1
        if index < 0:
            return None
        shadow = registry[bases[index]]
        return shadow if address < shadow.base + shadow.nbytes else None


def bounds(host):
    """First and one past the last byte of a NumPy array; what a strided view skips counts as its own."""
    start = host.__array_interface__["data"][0]
    if host.size == 0:
        return start, start
    if host.flags.c_contiguous:
        return start, start + host.nbytes
    reach = [(extent - 1) * stride for extent, stride in zip(host.shape, host.strides, strict=True)]
    return start + sum(min(0, step) for step in reach), start + sum(max(0, step) for step in reach) + host.itemsize


def pinned(nbytes):
    return Allocation(nbytes, "pinned")


def span(array_or_address, nbytes=None):
    """(shadow, start, stop) of an array of either library or of an address; None for memory that no device knows."""
    if isinstance(array_or_address, int):
        start, stop = array_or_address, array_or_address + (nbytes or 0)
    else:
        start, stop = bounds(getattr(array_or_address, "_host", array_or_address))
    shadow = find(start)
    return None if shadow is None else (shadow, start, stop)


def used_bytes():
    with order.lock:
        reap()
        return sum(shadow.nbytes for shadow in registry.values() if shadow.kind != "pinned")


def reset():
    """Forget what happened to the memory that is left."""
    with order.lock:
        reap()
        for shadow in registry.values():
            shadow.records.clear()
            shadow.uses.clear()


class Threads(threading.local):
    """Per host thread: the device it is on, whether it ever chose one, and its stream on each device."""

    device, chosen = 0, False

    def __init__(self):
        self.streams = {}


here = Threads()
