"""Events: when data that a kernel wrote may be used outside the kernel's stream, above all by MPI.

Kernels on a GPU are only launched when a call returns; they run later, in the order of their stream. An **event**
marks a point in that order. Before a buffer is used outside the stream that wrote it, the host has to wait for an
event of that stream. Without the wait, numbers are wrong now and then, and there is no error.
"""

from typing import Protocol

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dispatch import kernels_for


class Event(Protocol):
    """A point in the order of a stream, set anew by each ``record``."""

    def record(self) -> None:
        """Mark what this thread has launched so far on its current stream."""

    def synchronize(self) -> None:
        """Block the host until the recorded work is over, with the interpreter lock released."""

    def done(self) -> bool:
        """Whether the recorded work is over."""


def event_for(array: Array) -> Event | None:
    """An event for the kernels that work on this array; None for host arrays, whose kernels end when they return."""
    event: Event | None = kernels_for(array).event()
    return event


def synchronize(array: Array) -> None:
    """Block until what this thread has launched on its current stream is over; at once for a host array."""
    event = event_for(array)
    if event is not None:
        event.record()
        event.synchronize()
