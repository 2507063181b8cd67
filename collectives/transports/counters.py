"""A barrier and a vote for the ranks of a host: counters in shared memory, without messages.

    my counter += 1, then read each other rank's counter until it has caught up

A rank stores data, raises its counter, reads the others' counters, then their data, and may store again after the next
barrier. So stores and loads must stay in order among themselves, and no later store may overtake a load. x86-64
promises all three, for the aligned 8 bytes that CPython copies; on other processors ranks exchange messages.

A rank looks at a counter a few times, then lets MPI progress (a peer may wait for a message that this rank has begun)
and yields its core, then naps: a spin in Python keeps the interpreter lock from the process's other threads. Only ranks
with a core each use counters.

A rank can be one meeting ahead of another, never two: it leaves meeting k only after all ranks have entered it, so all
have left meeting k - 1. With two sets of slots that alternate, no rank overwrites data that another one still reads.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Sequence

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import crowd_of, nap_until

ORDERED = platform.machine() in ("x86_64", "AMD64")
LINE_BYTES = 64  # a cache line: raising a counter does not slow readers of the next one
BLOCK_LINES = 1024
SPINS, YIELDS = 20, 500  # of 50 ns, then of a microsecond or more if other processes want the core; then naps
CacheLine = memoryview  # as 8-byte integers: the counter, then room for a vote in each of two alternating slots


def barriers_of(transport: Transport, progress: Callable[[], object]) -> Generator[CounterBarrier | None]:
    """Yield a barrier for each plan; None if ranks of this transport must exchange messages. Each step is collective.

    ``progress`` lets the transport's messages advance. A line is never used again, so a plan that one rank frees later
    than another disturbs none.
    """
    apart = len(set(transport.hosts)) > 1 or transport.size == 1
    usable = ORDERED and not apart and not crowd_of(transport, threads=1).crowded
    while usable:
        block = transport.reach(transport.allocate(BLOCK_LINES * LINE_BYTES))
        if block is None:
            break
        for start in range(0, BLOCK_LINES * LINE_BYTES, LINE_BYTES):
            lines = [each[start : start + LINE_BYTES].data.cast("q") for each in block]
            yield CounterBarrier(lines, transport.rank, progress)
    while True:
        yield None


class CounterBarrier:
    """``meet``, or ``enter`` and wait for each of ``arrivals``."""

    def __init__(self, lines: Sequence[CacheLine], rank: int, progress: Callable[[], object]) -> None:
        self.mine, self.count, self.progress = lines[rank], 0, progress
        self.arrivals = {peer: Arrival(self, theirs) for peer, theirs in enumerate(lines) if peer != rank}
        self.others = [(arrival.theirs, arrival.Wait) for arrival in self.arrivals.values()]

    def enter(self) -> None:
        self.count += 1
        self.mine[0] = self.count

    def meet(self) -> None:
        """Enter, and wait for all ranks."""
        self.count = count = self.count + 1
        self.mine[0] = count
        for theirs, wait in self.others:
            looks = SPINS
            while theirs[0] < count:
                looks -= 1
                if looks == 0:
                    wait()

    @property
    def late(self) -> list[int]:
        """The ranks that have not arrived yet."""
        return [peer for peer, arrival in self.arrivals.items() if not arrival.Test()]

    def same(self, number: int) -> bool:
        """Meet; return whether all ranks gave this number."""
        slot, alike = 2 - (self.count & 1), True
        self.mine[slot] = number
        self.meet()
        for theirs, _ in self.others:
            alike = alike and theirs[slot] == number
        return alike


class Arrival:
    """A peer's arrival at a barrier that this rank has entered."""

    __slots__ = ("barrier", "theirs")

    def __init__(self, barrier: CounterBarrier, theirs: CacheLine) -> None:
        self.barrier, self.theirs = barrier, theirs

    def Wait(self) -> None:
        """Let messages progress and others use the core, then nap."""
        for _ in range(YIELDS):
            if self.Test():
                return
            os.sched_yield()
        nap_until(self.Test)

    def Test(self) -> bool:
        if self.theirs[0] >= self.barrier.count:
            return True
        self.barrier.progress()
        return False
