"""Latency and bandwidth between neighbours in the ring, one pair after the other, by messages there and back.

A rank whose turn has not come, or is over, sleeps: a rank that waits inside MPI would take the core, and the figures
of the others would be those of a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dear_mpi.collectives.transport import Request, Transport
from dear_mpi.doctor.facts import LinkFacts
from dear_mpi.doctor.gpus import device_zeros
from dear_mpi.kernels.accumulate import copier
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import event_for
from dear_mpi.kernels.slab import Slab
from dear_mpi.stats import median

__all__ = ["measure_links"]

SMALL_BYTES = 8
SAMPLES = (100, 10)  # round trips of small and of large messages
WARM_UP = 3
NAP_S = 500e-6


def measure_links(transport: Transport, nbytes: int, path: str) -> list[LinkFacts]:
    """Collective: a row per pair of neighbours, the same on all ranks; none where there is one rank.

    Args:
        nbytes: of the large messages.
        path: ``host``, ``device`` (a GPU's memory is handed to MPI) or ``staged`` (copied out, sent, copied in).
    """
    rank, size = transport.rank, transport.size
    counts = SMALL_BYTES, nbytes
    mine: LinkFacts | None = None
    for source in range(size if size > 2 else size - 1):
        dest = (source + 1) % size
        # On all ranks alike, a tag for each pair and size: the requests of one may be freed when the next are made.
        rounds = [(transport.next_tag(), count, trips) for count, trips in zip(counts, SAMPLES, strict=True)]
        if rank == source:
            times = [Trips(transport, dest, tag, count, path).timed(trips) for tag, count, trips in rounds]
            mine = link(source, dest, path, nbytes, times)
        elif rank == dest:
            for tag, count, trips in rounds:
                Trips(transport, source, tag, count, path).answered(trips)
    pass_on(transport, transport.next_tag())
    return [row for row in transport.gather_values(mine) if row is not None]


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
        if path == "staged":
            pinned = Slab.pinned(out)
            staged = [pinned.empty(nbytes, np.dtype(np.uint8)) for _ in range(2)]
            self.lift, self.land = settled(staged[0], out), settled(back, staged[1])
            out, back = staged
        self.memory = out, back
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
        for trip in range(WARM_UP + samples):
            self.receive.Start()
            if trip == 0:
                doze(self.receive)
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
    event = event_for(dst) or event_for(src)

    def run() -> None:
        copy()
        if event is not None:
            event.record()
            event.synchronize()

    return run


def doze(request: Request) -> None:
    """Wait without taking the core."""
    while not request.Test():
        time.sleep(NAP_S)


def pass_on(transport: Transport, tag: int) -> None:
    """A token around the ring, from rank 0 on, which is the last to be done: the others sleep until then."""
    if transport.size == 1:
        return
    token = np.zeros(1, np.uint8)
    receive = transport.recv_init(token, (transport.rank - 1) % transport.size, tag)
    send = transport.send_init(token, (transport.rank + 1) % transport.size, tag)
    receive.Start()
    if transport.rank == 0:
        send.Start()
    doze(receive)
    if transport.rank != 0:
        send.Start()
    send.Wait()
    send.Free()
    receive.Free()
