"""Where a rank works: the host or a GPU, with one stream for computing and one for communicating.

    compute        | backward 3 | backward 2 | ...   kernels of the layers, packing, updates     (main thread)
                        o mark        ^ wait
    communication       ^ wait        o mark         kernels that combine and copy               (engine's thread)

What is launched on a stream runs later, in order. A **mark** is set after what was launched so far: the other stream
waits for it, without the host. (That the host waits before MPI touches a buffer is up to the plan, see the note in
``collectives/plans/runners/messages.py``.) The time between two marks of a stream is what its work took, with pauses.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.gpu import current_gpu, use_gpu
from dear_mpi.kernels.lookup import lookup


class Stream:
    """An order of work. This is the host's, whose code is over when it returns: a mark is a time."""

    def use(self) -> AbstractContextManager[object]:
        """Let this thread work on it."""
        return nullcontext()

    # A mark after all that was launched so far. Each layer sets four: no method around the clock.
    mark: Callable[[], Any] = staticmethod(time.perf_counter)

    def wait(self, mark: Any) -> None:
        """Let what is launched from now on begin after a mark of another stream."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The time from one mark of this stream to another; blocks the host until the second is reached."""
        return float(end - begin)


class CudaStream(Stream):
    """A stream of a GPU; a mark is an event."""

    def __init__(self, cupy: Any, gpu: int) -> None:
        self.cuda, self.gpu = cupy.cuda, gpu
        self.stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def use(self) -> Iterator[None]:
        self.cuda.Device(self.gpu).use()  # each thread has to: the engine's would be on GPU 0, or on none
        with self.stream:
            yield

    def mark(self) -> Any:
        event = self.cuda.Event()
        event.record(self.stream)
        return event

    def wait(self, mark: Any) -> None:
        self.stream.wait_event(mark)

    def seconds(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(self.cuda.get_elapsed_time(begin, end)) * 1e-3


@dataclass(frozen=True)
class Streams:
    """The two streams of a rank; ``put`` brings an array of the host to where they work."""

    compute: Stream
    communication: Stream
    put: Callable[[Array], Array]


def host_streams() -> Streams:
    return Streams(Stream(), Stream(), put=lambda array: array)


def cuda_streams() -> Streams:
    gpu = current_gpu().number  # which ``select_gpu`` chose
    import cupy

    return Streams(CudaStream(cupy, gpu), CudaStream(cupy, gpu), cupy.asarray)


STREAMS: dict[str, Callable[[], Streams]] = {"cpu": host_streams, "cuda": cuda_streams}


def open_streams(device: str) -> Streams:
    """The streams of this rank on ``cpu`` or ``cuda``; a ValueError says that there is no such device here."""
    return lookup("device", device, STREAMS)()


def select_gpu(device: str = "cuda") -> None:
    """For ``cuda``: make this process use its GPU, by its local rank, before MPI starts, which binds to it. Where there
    is none nothing happens: ``open_streams`` will say so, on all ranks."""
    if device == "cuda":
        use_gpu(launch_of(os.environ).local_rank or 0)
