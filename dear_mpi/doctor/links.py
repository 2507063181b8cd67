"""Latency and bandwidth between neighbours in the ring, one pair after the other, by messages there and back."""

import time

import numpy as np

from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.doctor.facts import LinkFacts
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import synchronize
from dear_mpi.reporting.stats import median

__all__ = ["measure_links"]

SMALL_BYTES = 8
SAMPLES = (100, 10)  # round trips of small and of large messages
WARM_UP = 3


def measure_links(transport: Transport, nbytes: int, path: str) -> list[LinkFacts]:
    """Collective: a row per pair of neighbours, the same on all ranks; ``nbytes`` is that of the large messages."""
    size = transport.size
    rows: list[LinkFacts] = []
    for source in range(size if size > 2 else size - 1):
        dest = (source + 1) % size
        program = there_and_back(transport.rank, size, source, dest)
        sizes = zip((SMALL_BYTES, nbytes), SAMPLES, strict=True)
        mine = [round_trip_s(program, transport, count, path, samples) for count, samples in sizes]
        transport.barrier(asleep=True)  # the other ranks leave their cores to the pair
        small_s, large_s = (seconds / 2 for seconds in transport.gather_values(mine)[source])
        latency, bandwidth = (small_s * 1e6, SMALL_BYTES, SAMPLES[0]), (nbytes / large_s * 1e-9, nbytes, SAMPLES[1])
        rows.append(LinkFacts(source, dest, path, *latency, *bandwidth))
    return rows


def there_and_back(rank: int, size: int, source: int, dest: int) -> Program:
    """Chunk 0 goes from ``source`` to ``dest`` and back; the steps of all other ranks are empty."""
    chunk = range(1)
    steps = {
        source: (Step(sends=(Send(dest, chunk),)), Step(receives=(Receive(dest, chunk),))),
        dest: (Step(receives=(Receive(source, chunk),)), Step(sends=(Send(source, chunk),))),
    }
    return Program("round trip", rank, size, steps.get(rank, (Step(), Step())))


def round_trip_s(program: Program, transport: Transport, nbytes: int, path: str, samples: int) -> float:
    """Seconds of a round trip of so many bytes, the median; what the other ranks measure is of no use."""
    buffer = np.zeros(nbytes, np.uint8) if path == "host" else device_zeros(nbytes)
    chunks = (0, *[nbytes] * program.size)  # chunk 0 is the whole buffer
    tag, staged = transport.next_tag(), path == "staged"
    run = MessagesRun(program, buffer, chunks, transport, op="sum", segment=nbytes, tag=tag, staged=staged)
    seconds = []
    for _ in range(WARM_UP + samples):
        begin_s = time.perf_counter()
        run.whole()
        if staged:
            synchronize(buffer)  # the copy in was only launched
        seconds.append(time.perf_counter() - begin_s)
    run.free()
    return median(seconds[WARM_UP:]).value


def device_zeros(nbytes: int) -> Array:
    """Zeros in device memory, ready to be handed to MPI; allocated as buckets are, which decides how they travel."""
    from dear_mpi.kernels.cuda_backend import allocate  # imports CuPy

    array = allocate(nbytes)
    array[...] = 0
    synchronize(array)
    return array
