"""Run a rank's work on the host or a GPU, with one stream for compute and one for communication.

    compute        | backward 3 | backward 2 | ...   kernels of the layers, packing, updates     (main thread)
                        o mark        ^ wait
    communication       ^ wait        o mark         kernels that combine and copy               (engine's thread)

A stream runs its work in order. A **mark** is an event after all launched work; the other stream waits for it, without
the host. A plan makes the host wait before MPI touches a buffer.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.kernels.array import Array, current_gpu, use_gpu
from dear_mpi.kernels.lookup import lookup


class Stream:
    """The host's order of work: a mark is a time."""

    def use(self) -> AbstractContextManager[object]:
        """Make this thread launch work on it."""
        return nullcontext()

    # Four per layer: the clock without a method around it.
    mark: Callable[[], Any] = staticmethod(time.perf_counter)

    def wait(self, mark: Any) -> None:
        """Delay future work until another stream's mark."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between marks; the host blocks until the second."""
        return float(end - begin)


class CudaStream(Stream):
    """A GPU's stream; a mark is a CUDA event."""

    def __init__(self, cupy: Any, gpu: int, address: int | None = None) -> None:
        """Open a stream, or another library's at ``address``."""
        self.cuda, self.gpu = cupy.cuda, gpu
        self.stream = cupy.cuda.Stream(non_blocking=True) if address is None else cupy.cuda.ExternalStream(address)

    @contextmanager
    def use(self) -> Iterator[None]:
        self.cuda.Device(self.gpu).use()  # on each thread: the engine's would be on GPU 0, or none
        with self.stream:
            yield

    def mark(self) -> Any:
        with self.cuda.Device(self.gpu):  # an event is made on the current device
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
    """A rank's two streams; ``put`` copies a host array to their device."""

    compute: Stream
    communication: Stream
    put: Callable[[Array], Array]


def host_streams() -> Streams:
    return Streams(Stream(), Stream(), put=lambda array: array)


def cuda_streams(compute: int | None = None) -> Streams:
    """Open this rank's streams; ``compute``: address of another library's compute stream."""
    gpu = current_gpu().number  # by ``select_gpu``
    import cupy

    return Streams(CudaStream(cupy, gpu, compute), CudaStream(cupy, gpu), cupy.asarray)


STREAMS: dict[str, Callable[[], Streams]] = {"cpu": host_streams, "cuda": cuda_streams}


def open_streams(device: str) -> Streams:
    return lookup("device", device, STREAMS)()


def select_gpu(device: str = "cuda") -> None:
    """For ``cuda``: select the local rank's GPU before MPI starts and binds to it."""
    if device == "cuda":
        use_gpu(launch_of(os.environ).local_rank or 0)
