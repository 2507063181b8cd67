"""Streams and events: their order is real, their work is over when the call returns."""

import itertools
import os
import time
import weakref

from cupy import order
from cupy.cuda.runtime import CUDARuntimeError
from cupy.storage import here

pointers = itertools.count(0x1000, 0x10)
by_pointer = weakref.WeakValueDictionary()


class Stream:
    """A CUDA stream; ``Stream.null`` is the legacy default stream of whichever device is current."""

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        if ptds:
            raise NotImplementedError("the stand-in has no per-thread default stream")
        self.ptr = 0 if null else next(pointers)
        self.non_blocking, self.previous, self.asked = non_blocking, [], -1
        if not null:
            check_context()
            self.own = order.Lane(f"stream {self.ptr:#x}", here.device, blocking=not non_blocking)
            by_pointer[self.ptr] = self

    @property
    def lane(self):
        return self.own if self.ptr else order.null_lane(here.device)

    def __repr__(self):
        return f"<stand-in of a stream, {self.lane.name}>"

    def __eq__(self, other):
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self):
        return hash(self.ptr)

    def use(self):
        here.streams[here.device] = self
        return self

    def __enter__(self):
        stacks = here.__dict__.setdefault("entered", [])
        stacks.append((here.device, here.streams.get(here.device)))
        return self.use()

    def __exit__(self, *error):
        device, stream = here.entered.pop()
        here.streams[device] = stream or Stream.null

    def synchronize(self):
        check_context()
        lane = self.lane
        order.host_joins(lane.clock)

    @property
    def done(self):
        """False once after each new work that the host has not waited for, so that both ways are gone in a test."""
        lane = self.lane
        if order.host_knows(lane.clock):
            return True
        if self.asked != lane.position:
            self.asked = lane.position
            return False
        order.host_joins(lane.clock)
        return True

    def record(self, event=None):
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        """Later work here waits for what was recorded; for an event never recorded, as CUDA: for nothing."""
        check_context()
        with order.lock:
            order.join(self.lane.clock, event.clock or {})


Stream.null = Stream(null=True)


class Event:
    """A CUDA event: a copy of what its stream knew when it was recorded."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        check_context()
        self.timed, self.clock, self.time_s, self.asked = not disable_timing, None, None, False
        self.ptr = next(pointers)

    def record(self, stream=None):
        check_context()
        lane = (stream or get_current_stream()).lane
        with order.lock:
            lane.catch_up()
            self.clock, self.time_s, self.asked = dict(lane.clock), time.perf_counter(), False

    def synchronize(self):
        check_context()
        order.host_joins(self.clock or {})

    @property
    def done(self):
        """False once after each record that the host has not waited for."""
        if order.host_knows(self.clock or {}):
            return True
        if not self.asked:
            self.asked = True
            return False
        order.host_joins(self.clock)
        return True


def get_elapsed_time(start_event, end_event):
    for event in (start_event, end_event):
        if not event.timed or event.clock is None:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: the event has no time, or was never recorded")
        if not order.host_knows(event.clock):
            raise CUDARuntimeError("cudaErrorNotReady: device not ready (nobody waited for the event)")
    return (end_event.time_s - start_event.time_s) * 1e3


def get_current_stream(device_id=None):
    return here.streams.get(here.device if device_id is None else device_id, Stream.null)


def check_context():
    """With STANDIN_STRICT_DEVICE=1 a thread that chose no device is refused, as MPI's cuda_ipc does."""
    if os.environ.get("STANDIN_STRICT_DEVICE") == "1" and not here.chosen:
        raise RuntimeError("invalid device context: this thread never called Device(...).use()")


def current_lane():
    check_context()
    return get_current_stream().lane


def lane_of(pointer):
    """The lane of a ``cudaStream_t``."""
    check_context()
    if pointer in (0, 1):
        return order.null_lane(here.device)
    if pointer not in by_pointer:
        raise CUDARuntimeError(f"cudaErrorInvalidResourceHandle: no stream {pointer:#x}, or it was destroyed")
    return by_pointer[pointer].lane
