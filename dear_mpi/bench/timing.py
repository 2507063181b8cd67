"""Start a call on all ranks at once, and time it.

    barrier    | barrier ----.| call          ranks leave a barrier in sequence, the last when others are half done: a
                                              call may seem longer, or shorter, than it is
    moment     | MAX of clocks | spin  .| call    all begin within the clocks' uncertainty

The moment is a little later than the last rank's arrival. A rank is late if the moment passes before it waits, or if it
loses its core meanwhile; the sample then does not count. If ranks are often late, they share their cores, and the whole
run starts at barriers, so that samples are comparable.

Two clock readings and a Python call remain in a loop; ``own_cost`` measures them.

Source: Hunold and Carpen-Amarie, Reproducible MPI Benchmarking Is Still Not as Easy as You Think (IEEE TPDS 27, 2016),
the Round-Time scheme.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from typing import Any, Protocol

from dear_mpi.bench.arrivals import Wait
from dear_mpi.bench.case import Conditions
from dear_mpi.collectives.plans.runners.native import call_alone
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import crowd_of
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.streams import Stream, Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note

LEAD, TRIALS = 3.0, 21  # from now to the moment, in durations of an agreement; trials to measure it
MOST_LEAD_S = 1e-3  # on a busy machine an agreement may take a time slice
MOST_LATE, LONGEST = 0.1, 64.0  # if a larger share of a block is late, the lead doubles, up to LONGEST times LEAD
LOST_S = 20e-6  # a rank that wakes up later had lost its core: reading the clock takes below 1 us
BLOCKS, BLOCK_S, FEWEST = 3, 0.05, 20  # of the trial: their number, duration and fewest starts


class Start(Protocol):
    name: str

    def holds(self) -> bool:
        """Collective: try a few blocks of starts; return whether at most a tenth of one block's starts were late."""

    def prepare(self) -> None:
        """Collective: prepare a block of calls."""

    def __call__(self) -> bool:
        """Collective: wait for the start; return its time, and whether this rank was in time."""

    def report(self) -> dict[str, Any] | None:
        """Collective: return facts about the clocks."""


class AtBarrier:
    """Starts after a barrier."""

    name = "barrier"

    def __init__(self, transport: Transport) -> None:
        self.barrier = transport.barrier

    def holds(self) -> bool:
        return True

    def prepare(self) -> None:
        """Do nothing."""

    def __call__(self) -> bool:
        self.barrier()
        return True

    def report(self) -> None:
        return None


class AtMoment:
    """Starts at a moment of the common clock; after many late starts the lead grows."""

    name = "clock"

    def __init__(self, transport: Transport, clock: CommonClock) -> None:
        self.transport, self.clock = transport, clock
        self.lead_s, self.longer = 0.0, 1.0
        self.calls = self.late = 0

    def holds(self) -> bool:
        """Try blocks; the lead doubles after a block with many late starts."""
        for _ in range(BLOCKS):
            self.prepare()
            for _ in range(max(FEWEST, int(BLOCK_S / self.lead_s))):
                self()
            if max(self.transport.gather_values(self.late)) <= MOST_LATE * self.calls:
                return True
        return False

    def prepare(self) -> None:
        """Measure the clocks again, and the duration of an agreement on a moment."""
        self.clock.look()
        took_s = []
        for _ in range(TRIALS):
            begin_s = self.clock.now()
            self.transport.latest(begin_s)
            took_s.append(self.clock.now() - begin_s)
        took, late = zip(*self.transport.gather_values((median(took_s), self.late)), strict=True)
        if max(late) > MOST_LATE * self.calls:
            self.longer = min(2 * self.longer, LONGEST)
        self.lead_s, self.calls, self.late = min(LEAD * max(took) * self.longer, MOST_LEAD_S), 0, 0

    def __call__(self) -> bool:
        clock, offset_s = self.clock.now, self.clock.offset_s()
        begin_s = self.transport.latest(clock() - offset_s) + offset_s + self.lead_s
        in_time = clock() < begin_s
        while (now_s := clock()) < begin_s:
            pass
        in_time = in_time and now_s - begin_s < LOST_S
        self.calls, self.late = self.calls + 1, self.late + (not in_time)
        return in_time

    def report(self) -> dict[str, Any]:
        return self.clock.report() | {"lead_s": self.lead_s}


SMALL_BYTES = 64 * 1024
CALLS = 100, 10  # in sequence: with small buffers, and with others
COST_TRIALS, TRIAL_CALLS = 11, 20  # the loop's cost is their median


def calls_in_a_row(nbytes: int) -> int:
    return CALLS[nbytes > SMALL_BYTES]


def isolated(run: Callable[[], object], start: Start, stream: Stream, wait: Wait | None = None) -> tuple[float, bool]:
    """Return the seconds from a common start to a call's last kernel, and whether this rank was in time.

    A rank with a delay waits in between.
    """
    mark = stream.mark
    in_time = start()
    begin = mark()
    if wait is not None:
        wait.since(time.perf_counter())
    run()
    return stream.seconds(begin, mark()), in_time


def streaming(run: Callable[[], object], between: Callable[[], object], calls: int, stream: Stream) -> float:
    """Return the mean seconds of calls in sequence, each to the end of its last kernel; ``between`` is not timed.

    The first call is not timed: its data were just written and are not yet in the caches.
    """
    mark, seconds, elapsed_s = stream.mark, stream.seconds, 0.0
    run()
    for _ in repeat(None, calls):
        between()
        begin = mark()
        run()
        elapsed_s += seconds(begin, mark())
    return elapsed_s / calls


def on_host(run: Callable[[], object], between: Callable[[], object], calls: int) -> float:
    """Measure like ``streaming``, on the host only, which reads the clock without a call in between."""
    clock, elapsed_s = time.perf_counter, 0.0
    run()
    for _ in repeat(None, calls):
        between()
        begin_s = clock()
        run()
        elapsed_s += clock() - begin_s
    return elapsed_s / calls


def quick_barrier(transport: Transport) -> Callable[[], object]:
    """Return the library's barrier, if there is one.

    A transport's barrier reports to the watchdog, which would distort times if ranks share a core.
    """
    return transport.barrier if transport.native is None else transport.native.Barrier


@dataclass(frozen=True)
class OwnCost:
    """The loop's addition to a call, in us.

    If ranks share a core, a rank's time contains the others' calls and barriers.
    """

    empty_us: float  # the clock, and an empty call
    self_us: dict[str, float]  # by collective, MPI's call of 4 bytes from Python on a communicator of one rank
    barrier_us: float | None  # a barrier on that communicator; None without MPI


def own_cost(transport: Transport, collectives: Iterable[str]) -> OwnCost:
    """Collective: return the slowest rank's costs, in the timing loop with its barriers.

    Without MPI only the cost of an empty call is known.
    """
    calls: dict[str, Callable[[], object]] = {"": int}
    if transport.native is not None:
        calls |= {name: call_alone(name) for name in (*collectives, "barrier")}
    between = quick_barrier(transport)

    def cost_us(run: Callable[[], object]) -> float:
        return 1e6 * median(on_host(run, between, TRIAL_CALLS) for _ in range(COST_TRIALS))

    found = transport.gather_values({name: cost_us(run) for name, run in calls.items()})
    most = {name: max(each[name] for each in found) for name in calls}
    return OwnCost(most.pop(""), barrier_us=most.pop("barrier", None), self_us=most)


NEEDED = "isolated calls under MPI, at least 2 ranks, and a core for each"
LATE = "ranks were late for more than a tenth of the starts by the clock: all samples of this run start at barriers"


@dataclass(frozen=True)
class Context:
    """A world, its streams, and one start for all cases, with clocks that improve with each case."""

    world: World
    streams: Streams
    start: Start
    crowded: bool  # whether some machine has more ranks than cores

    @classmethod
    def of(cls, world: World, conditions: Conditions) -> Context:
        """Collective: open the streams and choose a start.

        Ranks that share cores may miss the moment while another rank runs, and threads share an interpreter: both begin
        at barriers.

        Raises:
            ArgumentError: on all ranks: there is no such device.
        """
        opened: list[Streams] = []

        def facts() -> Mapping[str, object]:
            opened.append(open_streams(conditions.device))
            return {}

        agree(world.transport, "bench", facts)
        streams, isolated = opened[0], conditions.cadence == "isolated"
        crowded = crowd_of(world.transport, 1).crowded
        cannot = world.transport.native is None or world.size == 1 or crowded
        if cannot or not isolated or conditions.start == "barrier":
            return cls(world, streams, AtBarrier(world.transport), crowded)
        return cls(world, streams, AtMoment(world.transport, CommonClock(world.transport)), crowded)


def decided_start(world: World, conditions: Conditions) -> str:
    """Collective: decide, before a run, how all of its samples start.

    Raises:
        ArgumentError: the ranks are to start by a clock and cannot.
    """
    start = Context.of(world, conditions).start
    if conditions.start == "clock" and start.name != "clock":
        raise ArgumentError(f"bench: start 'clock' needs {NEEDED}: take 'auto'")
    if start.holds():
        return start.name
    note(world, LATE)
    return AtBarrier.name
