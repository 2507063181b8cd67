"""Start a call on all ranks at once, and time a case's candidates in turns.

    barrier    | barrier ----.| call          ranks leave in sequence: a call may seem longer, or shorter, than it is
    clock      | MAX of clocks | spin  .| call    all begin within the clocks' uncertainty

A rank is late, and its sample does not count, if the moment passes before it waits, or if it loses its core. Source:
Hunold and Carpen-Amarie (IEEE TPDS 27, 2016).

A sample is one call with a checked result, or (``streaming``) the mean over calls in sequence after such a call.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat
from statistics import median
from typing import Any

from dear_mpi.bench.backends import candidate, prepare
from dear_mpi.bench.case import CannotRun, Case, Conditions, Prepared, Samples, Setup
from dear_mpi.bench.data import Data
from dear_mpi.bench.native import call_alone
from dear_mpi.bench.suite import Key
from dear_mpi.collectives.plans.tuning import wants_shared
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.wait_policy import crowd_of
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note

LEAD, TRIALS = 3.0, 21  # time to the moment, in durations of an agreement; trials to measure these
MOST_LEAD_S = 1e-3  # a busy machine's agreement may take a time slice
MOST_LATE, LONGEST = 0.1, 64.0  # if a larger share is late, the lead doubles, up to LONGEST times LEAD
LOST_S = 20e-6  # later, a rank had lost its core: reading the clock takes below 1 us
BLOCKS, BLOCK_S, FEWEST = 3, 0.05, 20  # of the trial: number, duration, fewest starts


class AtBarrier:
    name = "barrier"

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def holds(self) -> bool:
        """Collective: whether at most a tenth of some trial block's starts were late."""
        return True

    def prepare(self) -> None:
        """Collective: before a block of calls."""

    def __call__(self) -> bool:
        """Collective: wait for the start; return whether this rank was in time."""
        self.transport.barrier()
        return True

    def report(self) -> dict[str, Any] | None:
        return None


class AtMoment(AtBarrier):
    """Starts at a moment of the common clock; the lead grows after many late starts."""

    name = "clock"

    def __init__(self, transport: Transport, clock: CommonClock) -> None:
        super().__init__(transport)
        self.clock, self.lead_s, self.longer = clock, 0.0, 1.0
        self.calls = self.late = 0

    def holds(self) -> bool:
        for _ in range(BLOCKS):
            self.prepare()
            for _ in range(max(FEWEST, int(BLOCK_S / self.lead_s))):
                self()
            if max(self.transport.gather_values(self.late)) <= MOST_LATE * self.calls:
                return True
        return False

    def prepare(self) -> None:
        """Measure the clocks again, and the duration of an agreement."""
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


LATE = "ranks were late for more than a tenth of the starts by the clock: all samples of this run start at barriers"


@dataclass(frozen=True)
class Context:
    """A world, its streams, and one start for all cases."""

    world: World
    streams: Streams
    start: AtBarrier

    @classmethod
    def of(cls, world: World, conditions: Conditions) -> Context:
        """Collective; raises as ``agree``. Ranks that share cores begin at barriers: they may miss a moment."""
        opened: list[Streams] = []

        def facts() -> Mapping[str, object]:
            opened.append(open_streams(conditions.device))
            return {}

        agree(world.transport, "bench", facts)
        cannot = world.transport.native is None or world.size == 1 or crowd_of(world.transport, 1).crowded
        if cannot or conditions.cadence != "isolated" or conditions.start == "barrier":
            return cls(world, opened[0], AtBarrier(world.transport))
        return cls(world, opened[0], AtMoment(world.transport, CommonClock(world.transport)))


def decided_start(world: World, conditions: Conditions) -> str:
    """Collective: decide how samples start; an ArgumentError if ``start`` is impossible."""
    start = Context.of(world, conditions).start
    if conditions.start == "clock" and start.name != "clock":
        needed = "isolated calls under MPI, at least 2 ranks, and a core for each: take 'auto'"
        raise ArgumentError(f"bench: start 'clock' needs {needed}")
    if start.holds():
        return start.name
    note(world, LATE)
    return AtBarrier.name


FEW_CALLS_BYTES = 64 * 1024
CALLS = 100, 10  # in sequence: of buffers up to these bytes, of others
COST_TRIALS, TRIAL_CALLS = 11, 20  # the loop's cost is their median


def in_a_row(
    run: Callable[[], object],
    between: Callable[[], object],
    calls: int,
    mark: Callable[[], Any] = time.perf_counter,
    seconds: Callable[[Any, Any], float] = lambda begin_s, end_s: end_s - begin_s,
) -> float:
    """Return calls' mean seconds, each to its last kernel's end, without the first and ``between``."""
    elapsed_s = 0.0
    run()
    for _ in repeat(None, calls):
        between()
        begin = mark()
        run()
        elapsed_s += seconds(begin, mark())
    return elapsed_s / calls


def quick_barrier(transport: Transport) -> Callable[[], object]:
    """Return the library's barrier: a transport's also reports to the watchdog."""
    return transport.barrier if transport.native is None else transport.native.Barrier


def own_cost(transport: Transport, collectives: Iterable[str]) -> dict[str, Any]:
    """Collective: the slowest rank's us of an empty call; of 4 bytes and a barrier on one rank."""
    calls: dict[str, Callable[[], object]] = {"": int}
    if transport.native is not None:
        calls |= {name: call_alone(name) for name in (*collectives, "barrier")}
    between = quick_barrier(transport)

    def cost_us(run: Callable[[], object]) -> float:
        return 1e6 * median(in_a_row(run, between, TRIAL_CALLS) for _ in range(COST_TRIALS))

    found = transport.gather_values({name: cost_us(run) for name, run in calls.items()})
    most = {name: max(each[name] for each in found) for name in calls}
    return {"empty_us": most.pop(""), "barrier_us": most.pop("barrier", None), "self_us": most}


def wanted_memory(name: str, case: Case, hosts: Sequence[int]) -> str:
    if case.device != "cpu":
        return "device"
    shared = candidate(name).is_plan and case.memory != "private" and case.collective in COLLECTIVES
    if shared and case.memory == "auto":
        shared = wants_shared(name, hosts, case.collective, case.nbytes)
    return "shared" if shared else "private"


def needed_bytes(case: Case, names: Sequence[str], hosts: Sequence[int]) -> int:
    """Return a rank's least memory, by kind: buffer, data, expected result, second buffer."""
    homes = {wanted_memory(name, case, hosts) for name in names}
    return (3 + case.window * (case.placement == "out")) * case.nbytes * len(homes)


class Interleaved:
    """Collective: a case's prepared candidates; ``left_out``: why others are missing."""

    def __init__(self, case: Case, keys: Sequence[Key], context: Context) -> None:
        world, self.turn, self.case = context.world, 0, case
        self.transport, self.stream, self.start = world.transport, context.streams.compute, context.start
        # Messages of a pair synchronise the ranks; OSU has no barriers there.
        self.between: Callable[[], object] = int if case.operation.pair else quick_barrier(self.transport)
        self.data = cache(partial(Data, case, world, context.streams))  # by memory
        self.ready: dict[Key, tuple[Prepared, Data]] = {}
        self.left_out: dict[str, str] = {}
        for name, segment_bytes in keys:
            memory = wanted_memory(name, case, world.transport.hosts)
            if memory == "shared" and world.transport.reach(self.data(memory).x) is None:
                memory = "private"
            data = self.data(memory)
            try:
                prepared = prepare(name, Setup(case, data.x, data.out, world.transport, segment_bytes))
            except CannotRun as error:
                self.left_out[name] = str(error)
                continue
            self.ready[name, prepared.segment_bytes or segment_bytes] = prepared, data

    def run(self, turns: int) -> dict[Key, Samples]:
        """Collective: sample each ``turns`` times."""
        mine: dict[Key, list[float]] = {key: [] for key in self.ready}
        wrong = dict.fromkeys(self.ready, 0)
        # A backend's threads that still work would disturb others.
        alone = [key for key in self.ready if candidate(key[0]).session]
        groups = [key for key in self.ready if key not in alone], alone
        skipped = all(groups)  # a group's first turn does not count
        self.start.prepare()
        for group, number in itertools.product(groups, range(-skipped, turns)):
            self.turn += 1
            # Equally shuffled on all ranks, so that none always follows the slowest.
            for key in random.Random(self.turn).sample(group, len(group)):
                elapsed_s, errors = self.sample(*self.ready[key])
                wrong[key] += errors
                if number >= 0:
                    mine[key].append(elapsed_s)
        answers = self.transport.gather_values((mine, wrong))
        return {
            key: Samples(
                *self.in_time([times_s[key] for times_s, _ in answers]),
                memory=data.memory,
                chosen=prepared.chosen,
                start=self.start.name,
                wrong=sum(errors[key] for _, errors in answers),
            )
            for key, (prepared, data) in self.ready.items()
        }

    def sample(self, prepared: Prepared, data: Data) -> tuple[float, int]:
        """Return a sample's seconds (NaN if this rank was late) and wrong elements."""
        if self.case.placement == "out":  # the lines of ``out`` are in the caches where this candidate leaves them
            prepared.run()
            prepared.untimed()
        data.fill(self.turn)
        mark = self.stream.mark
        in_time = self.start()
        begin = mark()
        prepared.run()
        elapsed_s = self.stream.seconds(begin, mark())
        prepared.untimed()
        errors = data.errors(self.turn)
        if self.case.cadence == "isolated":
            return elapsed_s if in_time else math.nan, errors
        data.clear()
        self.transport.barrier()
        marks = () if self.case.device == "cpu" else (mark, self.stream.seconds)
        return in_a_row(prepared.run, self.between, CALLS[self.case.nbytes > FEW_CALLS_BYTES], *marks), errors

    def in_time(self, times_s: list[list[float]]) -> tuple[list[list[float]], int]:
        """Return samples with all ranks in time, by timed rank, for a part of a call; count the others."""
        kept = [sample for sample in zip(*times_s, strict=True) if not any(map(math.isnan, sample))]
        parts, timed = self.case.operation.parts * self.case.window, 1 if self.case.operation.pair else len(times_s)
        return [[sample[rank] / parts for sample in kept] for rank in range(timed)], len(times_s[0]) - len(kept)

    def free(self) -> None:
        for prepared, _ in self.ready.values():
            prepared.free()
