"""Measure latency and bandwidth between pairs of ranks, each direction separately.

latency        half of a round trip of 8 bytes: one figure for both directions
one way        ``MESSAGES`` messages from one rank to the other, then an 8-byte answer: their bytes, divided by the
               time until the answer arrives (like osu_bw)
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from typing import TypeAlias

import numpy as np

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, synchronize
from dear_mpi.kernels.slab import Slab
from dear_mpi.ranks.streams import open_streams
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, median
from dear_mpi.reporting.units import format_bytes, parse_bytes

Pair: TypeAlias = tuple[int, int]
Programs: TypeAlias = Callable[[int, int, int, int], Program]
"""Of rank, size, source and dest."""

Timed: TypeAlias = tuple[Median, int]
"""Seconds, and the number of samples."""

SMALL_BYTES = 8
MESSAGES = 8  # in a stream
SAMPLES = (100, 30)  # of small, of large messages
BUDGET_S = 0.3  # beyond the samples for a median's interval
WARM_UP = 2
MOST_BYTES = 1 << 30


def parse_message(text: str) -> int:
    """Parse the bytes of a large message. Raises a ValueError for other texts."""
    nbytes = parse_bytes(text)
    if not 1 <= nbytes <= MOST_BYTES:
        raise ValueError(f"size must be from 1 B to {format_bytes(MOST_BYTES)}, not {text}")
    return nbytes


def neighbours(size: int) -> list[Pair]:
    """
    >>> neighbours(2), neighbours(3)
    ([(0, 1)], [(0, 1), (1, 2), (2, 0)])
    """
    return [(source, (source + 1) % size) for source in range(size if size > 2 else size - 1)]


def all_pairs(size: int) -> list[Pair]:
    """Return the first and the last rank first: they are on two hosts if there are two.

    >>> all_pairs(3)
    [(0, 2), (0, 1), (1, 2)]
    """
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    return sorted(pairs, key=lambda pair: pair != (0, size - 1))


def measure_links(
    transport: Transport,
    pairs: Sequence[Pair],
    nbytes: int,
    path: str,
    advance: Callable[[Pair], object] = lambda pair: None,
) -> list[Link]:
    """Collective: measure pairs in turn; all ranks get a row for each direction of each pair.

    Args:
        nbytes: of a large message. A rank allocates 2 ``MESSAGES`` of these.
        path: host, device (memory handed to MPI), or staged.
        advance: is called after each pair.
    """
    talks = Talks(transport, nbytes, path)
    for pair in pairs:
        tag = transport.next_tag()
        if transport.rank in pair:
            talks.measure(*pair, tag)
        transport.barrier(asleep=True)
        advance(pair)
    found = {key: timed for each in transport.gather_values(talks.found) for key, timed in each.items()}
    return [row for pair in pairs for row in rows(found, pair, nbytes, path)]


def rows(found: dict[tuple[str, Pair], Timed], pair: Pair, nbytes: int, path: str) -> Iterator[Link]:
    there_and_back, round_trips = found["latency", pair]
    latency, low_us, high_us = (seconds / 2 * 1e6 for seconds in astuple(there_and_back))
    for source, dest in (pair, pair[::-1]):
        stream, streams = found["stream", (source, dest)]
        speed, most, least = (MESSAGES * nbytes / seconds * 1e-9 for seconds in astuple(stream))
        yield Link(
            *(source, dest, path, latency, SMALL_BYTES, round_trips, speed, nbytes, streams),
            *(low_us, high_us, least, most),
            messages=MESSAGES,
        )


class Talks:
    def __init__(self, transport: Transport, nbytes: int, path: str) -> None:
        self.transport, self.nbytes, self.staged = transport, nbytes, path == "staged"
        allocate = np.ones if path == "host" else device_ones  # written: untouched pages are all one page
        self.small, self.large = allocate(2 * SMALL_BYTES, np.uint8), allocate(2 * MESSAGES * nbytes, np.uint8)
        self.found: dict[tuple[str, Pair], Timed] = {}

    def measure(self, one: int, other: int, tag: int) -> None:
        self.timed("latency", [self.run(there_and_back, one, other, tag)], (one, other), tag)
        for source, dest in ((one, other), (other, one)):
            there = self.run(one_way, source, dest, tag, large=True)
            self.timed("stream", [there, self.run(one_way, dest, source, tag)], (source, dest), tag)

    def run(self, programs: Programs, source: int, dest: int, tag: int, *, large: bool = False) -> MessagesRun:
        size, half = self.transport.size, MESSAGES * self.nbytes if large else SMALL_BYTES
        return MessagesRun(
            programs(self.transport.rank, size, source, dest),
            self.large if large else self.small,
            (0, half, *[2 * half] * (size - 1)),
            self.transport,
            op="sum",
            segment=self.nbytes if large else SMALL_BYTES,
            tag=tag,
            staged=self.staged,
            window=MESSAGES,
        )

    def timed(self, what: str, runs: Sequence[MessagesRun], pair: Pair, tag: int) -> None:
        """Time the runs in sequence; the pair's first rank decides the repetitions."""
        warm_s = [self.sample(runs) for _ in range(WARM_UP)][-1]
        most = SAMPLES[what != "latency"]
        count = self.told(int(min(most, max(FEWEST_SAMPLES, BUDGET_S / warm_s))), *pair, tag)
        seconds = [self.sample(runs) for _ in range(count)]
        for run in runs:
            run.free()
        if self.transport.rank == pair[0]:
            self.found[what, pair] = median(seconds), count

    def sample(self, runs: Sequence[MessagesRun]) -> float:
        begin_s = time.perf_counter()
        for run in runs:
            run.whole()
            if self.staged:
                synchronize(run.buffer)  # waits for the copy in
        return time.perf_counter() - begin_s

    def told(self, number: int, source: int, dest: int, tag: int) -> int:
        """Send ``source``'s number to ``dest``; both return it."""
        box, sends = np.array([number]), self.transport.rank == source
        init, peer = (self.transport.send_init, dest) if sends else (self.transport.recv_init, source)
        request = init(box, peer, tag)
        request.Start()
        request.Wait()
        request.Free()
        return int(box[0])


def there_and_back(rank: int, size: int, source: int, dest: int) -> Program:
    """Send chunk 0 from ``source`` to ``dest``, and back into chunk 1, whose receive can be posted before the send."""
    forth, back = range(1), range(1, 2)
    steps = {
        source: (Step(sends=(Send(dest, forth),)), Step(receives=(Receive(dest, back),))),
        dest: (Step(receives=(Receive(source, forth),)), Step(sends=(Send(source, forth),))),
    }
    return Program("round trip", rank, size, steps[rank])


def one_way(rank: int, size: int, source: int, dest: int) -> Program:
    steps = {source: Step(sends=(Send(dest, range(1)),)), dest: Step(receives=(Receive(source, range(1)),))}
    return Program("one way", rank, size, (steps[rank],))


def device_ones(nbytes: int, dtype: type) -> Array:
    """Allocate device memory for MPI like buckets: the allocation decides the path of messages."""
    some = open_streams("cuda").put(np.zeros(1, np.uint8))
    array = Slab.beside(some, nbytes).empty(nbytes, some.dtype)
    array[...] = 1
    synchronize(array)
    return array
