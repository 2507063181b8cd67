"""Let the ranks of a host wait for each other by counters in shared memory, without messages.

    my counter += 1, then read each other rank's counter until it has caught up

A rank stores data, then raises its counter; a peer that reads the raised counter also reads the data, provided that
stores become visible in the order in which they are made. x86-64 promises this; on other processors ranks exchange
messages. A reader spins only if each rank of the host has a core, and not for long: then it naps, because a spin in
Python keeps the interpreter lock from the process's other threads.

A rank can be one meeting ahead of another, never two: it leaves meeting k only after all ranks have entered it, so all
have left meeting k - 1. With two sets of slots that alternate, nobody overwrites what another rank still reads.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Sequence

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import crowd_of, nap_until

ORDERED_STORES = platform.machine() in ("x86_64", "AMD64")
LINE_BYTES = 64  # a cache line: raising a counter does not slow readers of the next one
BLOCK_LINES = 1024
LOOKS, YIELDS = 20, 500  # of 50 ns, then of 0.5 us or more if other processes want the core; then naps


def wait_until(test: Callable[[], bool]) -> None:
    """Give the core to others, then nap."""
    for _ in range(YIELDS):
        if test():
            return
        os.sched_yield()
    nap_until(test)


Line = Sequence[memoryview]
"""A line of each rank, as 8-byte integers: the counter, then room for a vote in each of two alternating slots."""


def lines_of(transport: Transport) -> Generator[Line | None]:
    """Yield a new line for each plan; None if ranks of this transport must exchange messages. Each step is collective.

    A line is never used again, so a plan that one rank frees later than another disturbs none.
    """
    apart = len(set(transport.hosts)) > 1 or transport.size == 1
    usable = ORDERED_STORES and not apart and not crowd_of(transport, threads=1).crowded
    while usable:
        block = transport.reach(transport.allocate(BLOCK_LINES * LINE_BYTES))
        if block is None:
            break
        for start in range(0, BLOCK_LINES * LINE_BYTES, LINE_BYTES):
            yield [each[start : start + LINE_BYTES].data.cast("q") for each in block]
    while True:
        yield None


class CounterBarrier:
    """A rank's view of a line: ``meet``, or ``enter`` and wait for each of ``arrivals``."""

    def __init__(self, line: Line, rank: int) -> None:
        self.mine, self.count = line[rank], 0
        self.arrivals = {peer: Arrival(self, theirs) for peer, theirs in enumerate(line) if peer != rank}
        self.others = [(arrival.theirs, arrival.Test) for arrival in self.arrivals.values()]

    def enter(self) -> None:
        self.count += 1
        self.mine[0] = self.count

    def meet(self) -> None:
        """Enter, and wait for all ranks."""
        self.count = count = self.count + 1
        self.mine[0] = count
        for theirs, arrived in self.others:
            looks = LOOKS
            while theirs[0] < count:
                looks -= 1
                if looks < 0:
                    wait_until(arrived)

    @property
    def late(self) -> list[int]:
        """The ranks that have not arrived yet."""
        return [peer for peer, arrival in self.arrivals.items() if not arrival.Test()]

    def same(self, number: int) -> bool:
        """Meet; return whether all ranks gave this number."""
        slot = 2 - (self.count & 1)
        self.mine[slot] = number
        self.meet()
        return all([theirs[slot] == number for theirs, _ in self.others])  # a generator takes longer


class Arrival:
    """A peer's arrival at a barrier that this rank has entered."""

    __slots__ = ("barrier", "theirs")

    def __init__(self, barrier: CounterBarrier, theirs: memoryview) -> None:
        self.barrier, self.theirs = barrier, theirs

    def Wait(self) -> None:
        wait_until(self.Test)

    def Test(self) -> bool:
        return bool(self.theirs[0] >= self.barrier.count)
