"""Latency and bandwidth between neighbours in the ring, one pair after the other, by messages there and back."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dear_mpi.collectives.transports.transport import Request, Transport
from dear_mpi.doctor.facts import LinkFacts
from dear_mpi.figures.stats import median
from dear_mpi.kernels.accumulate import copier
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import synchronize
from dear_mpi.kernels.slab import Slab

__all__ = ["measure_links"]

SMALL_BYTES = 8
SAMPLES = (100, 10)  # round trips of small and of large messages
WARM_UP = 3


def measure_links(transport: Transport, nbytes: int, path: str) -> list[LinkFacts]:
    """Collective: a row per pair of neighbours, the same on all ranks; none where there is one rank.

    Args:
        nbytes: of the large messages.
        path: ``host``, ``device`` (a GPU's memory is handed to MPI) or ``staged`` (copied out, sent, copied in).
    """
    rank, size = transport.rank, transport.size
    rows: list[LinkFacts] = []
    for source in range(size if size > 2 else size - 1):
        dest = (source + 1) % size
        # On all ranks alike, a tag for each pair and size: the requests of one may be freed when the next are made.
        rounds = [(transport.next_tag(), *sizes) for sizes in zip((SMALL_BYTES, nbytes), SAMPLES, strict=True)]
        mine: LinkFacts | None = None
        if rank == source:
            times = [Trips(transport, dest, tag, count, path).timed(trips) for tag, count, trips in rounds]
            mine = link(source, dest, path, nbytes, times)
        elif rank == dest:
            for tag, count, trips in rounds:
                Trips(transport, source, tag, count, path).answered(trips)
        rows.append(transport.gather_values(mine)[source])  # the others wait here until the pair is done
    return rows


def link(source: int, dest: int, path: str, nbytes: int, times: list[list[float]]) -> LinkFacts:
    """Halved medians of round trips as latency and bandwidth."""
    small_s, large_s = (median(samples).value / 2 for samples in times)
    return LinkFacts(
        source,
        dest,
        path,
        latency_us=small_s * 1e6,
        latency_bytes=SMALL_BYTES,
        latency_samples=len(times[0]),
        GBps=nbytes / large_s * 1e-9,
        bytes=nbytes,
        samples=len(times[1]),
    )


class Trips:
    """Messages of one size to a peer and back, from memory of one kind."""

    def __init__(self, transport: Transport, peer: int, tag: int, nbytes: int, path: str) -> None:
        out, back = (np.zeros(nbytes, np.uint8) if path == "host" else device_zeros(nbytes) for _ in range(2))
        self.lift: Callable[[], object] = nothing
        self.land: Callable[[], object] = nothing
        self.memory = [out, back]  # is used as long as this object is
        if path == "staged":
            pinned = Slab.pinned(out)
            staged = [pinned.empty(nbytes, np.dtype(np.uint8)) for _ in range(2)]
            self.lift, self.land = settled(staged[0], out), settled(back, staged[1])
            out, back = staged
            self.memory += staged
        self.send: Request = transport.send_init(out, peer, tag)
        self.receive: Request = transport.recv_init(back, peer, tag)

    def timed(self, samples: int) -> list[float]:
        """Seconds of each round trip."""
        seconds = []
        for _ in range(WARM_UP + samples):
            begin_s = time.perf_counter()
            self.receive.Start()
            self.lift()
            self.send.Start()
            self.send.Wait()
            self.receive.Wait()
            self.land()
            seconds.append(time.perf_counter() - begin_s)
        self.free()
        return seconds[WARM_UP:]

    def answered(self, samples: int) -> None:
        """The other end of ``timed``."""
        for _ in range(WARM_UP + samples):
            self.receive.Start()
            self.receive.Wait()
            self.land()
            self.lift()
            self.send.Start()
            self.send.Wait()
        self.free()

    def free(self) -> None:
        self.send.Free()
        self.receive.Free()


def nothing() -> None:
    """Where memory needs no copy."""


def settled(dst: Array, src: Array) -> Callable[[], object]:
    """A copy between device and host that is over when it returns."""
    copy = copier(dst, src)

    def run() -> None:
        copy()
        synchronize(dst)
        synchronize(src)  # one of the two is the device's

    return run


def device_zeros(nbytes: int) -> Array:
    """Zeros in device memory, ready to be handed to MPI; allocated as buckets are, which decides how they travel."""
    from dear_mpi.kernels.cuda_backend import allocate  # imports CuPy

    array = allocate(nbytes)
    array[...] = 0
    synchronize(array)
    return array
