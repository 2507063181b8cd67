"""Latency and bandwidth between neighbours in the ring, one pair after the other, by messages there and back."""

import time
from dataclasses import astuple

import numpy as np

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, synchronize
from dear_mpi.reporting.stats import Median, median

SMALL_BYTES = 8
SAMPLES = (100, 30)  # round trips of small and of large messages
WARM_UP = 3


def measure_links(transport: Transport, nbytes: int, path: str) -> list[Link]:
    """Collective: a row per pair of neighbours, the same on all ranks; ``nbytes`` is the size of the large messages."""
    size = transport.size
    rows: list[Link] = []
    for source in range(size if size > 2 else size - 1):
        dest = (source + 1) % size
        mine = []
        for count, samples in zip((SMALL_BYTES, nbytes), SAMPLES, strict=True):
            tag = transport.next_tag()
            if transport.rank in (source, dest):
                program = there_and_back(transport.rank, size, source, dest)
                mine.append(round_trip_s(program, transport, path, tag=tag, nbytes=count, samples=samples))
        transport.barrier(asleep=True)  # the other ranks leave their cores to the pair
        small, large = transport.gather_values(mine)[source]
        latency, low_us, high_us = (seconds / 2 * 1e6 for seconds in astuple(small))
        speed, most, least = (nbytes / (seconds / 2) * 1e-9 for seconds in astuple(large))
        measured = latency, SMALL_BYTES, SAMPLES[0], speed, nbytes, SAMPLES[1]
        rows.append(Link(source, dest, path, *measured, low_us, high_us, least, most))
    return rows


def there_and_back(rank: int, size: int, source: int, dest: int) -> Program:
    """Chunk 0 goes from ``source`` to ``dest`` and back.

    It comes back into chunk 1, so that its receive can be posted before it is sent, as in any ping-pong.
    """
    forth, back = range(1), range(1, 2)
    steps = {
        source: (Step(sends=(Send(dest, forth),)), Step(receives=(Receive(dest, back),))),
        dest: (Step(receives=(Receive(source, forth),)), Step(sends=(Send(source, forth),))),
    }
    return Program("round trip", rank, size, steps[rank])


def round_trip_s(program: Program, transport: Transport, path: str, *, tag: int, nbytes: int, samples: int) -> Median:
    """The seconds of a round trip of ``nbytes``."""
    buffer = np.zeros(2 * nbytes, np.uint8) if path == "host" else device_zeros(2 * nbytes)
    chunks, staged = (0, nbytes, *[2 * nbytes] * (program.size - 1)), path == "staged"
    run = MessagesRun(program, buffer, chunks, transport, op="sum", segment=nbytes, tag=tag, staged=staged)
    seconds = []
    for _ in range(WARM_UP + samples):
        begin_s = time.perf_counter()
        run.whole()
        if staged:
            synchronize(buffer)  # the copy in was only launched
        seconds.append(time.perf_counter() - begin_s)
    run.free()
    return median(seconds[WARM_UP:])


def device_zeros(nbytes: int) -> Array:
    """Zeros in device memory, ready to be handed to MPI; allocated as buckets are, which decides how they travel."""
    from dear_mpi.kernels.cuda_backend import allocate  # imports CuPy

    array = allocate(nbytes)
    array[...] = 0
    synchronize(array)
    return array
