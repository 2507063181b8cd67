"""Contestants take turns at one case: with the same data, call by call, so whatever else the machine does hits them
alike. A sample is one call, whose result is checked, or (``streaming``) the mean over calls in a row after such a one.

Each works in the memory that it would have in a user's program: ours in memory that the ranks of a host share where
they make use of it, as in training, unless they are told otherwise; all others in private memory.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import cache, partial

from dear_mpi.bench.arrivals.arrival import TOGETHER, Arrival, Wait, after_last
from dear_mpi.bench.case import CannotRun, Case, Prepared, Samples, Setup
from dear_mpi.bench.data import Data
from dear_mpi.bench.found.tally import Tally
from dear_mpi.bench.makers.contestants import contestant, prepare
from dear_mpi.bench.makers.native import OTHERS
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.loops import calls_in_a_row, isolated, on_host, quick_barrier, streaming
from dear_mpi.collectives.plans.reach import wants_shared
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.ranks.host import page_faults

Key = tuple[str, int]  # a contestant and its segment_bytes


def wanted_memory(name: str, case: Case, hosts: Sequence[int]) -> str:
    """Where the buffers of a contestant are to be."""
    if case.device != "cpu":
        return "device"
    shared = contestant(name).is_plan and case.memory != "private" and case.collective in COLLECTIVES
    if shared and case.memory == "auto":
        shared = wants_shared(name, hosts, case.collective, case.used_bytes)
    return "shared" if shared else "private"


def needed_bytes(case: Case, names: Sequence[str], hosts: Sequence[int]) -> int:
    """What a rank needs at least, in each kind of memory and under each library: the buffer, the data for it, what is
    expected; and the buffers out of place."""
    makers = {name: contestant(name).maker for name in names}
    homes = {maker if maker in OTHERS else wanted_memory(name, case, hosts) for name, maker in makers.items()}
    received = case.window if case.placement == "out" else 0
    return (3 + received) * case.used_bytes * len(homes)


class Interleaved:
    """Collective: the contestants of a case, prepared; ``left_out`` says why those are missing that cannot run it."""

    def __init__(self, case: Case, keys: Sequence[Key], stand: Stand) -> None:
        world, self.turn = stand.world, 0
        self.case, self.transport, self.stream, self.start = case, world.transport, stand.streams.compute, stand.start
        # Calls in a row: messages of a pair wait for each other by themselves, and OSU has no barriers there.
        self.between: Callable[[], object] = int if case.operation.pair else quick_barrier(self.transport)
        self.data = cache(partial(Data, case, world, stand.streams))  # by memory
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

    def run(self, turns: int, arrival: Arrival = TOGETHER, *, skipped: int = 0) -> dict[Key, Samples]:
        """Collective: so many samples of each, after as many turns that do not count as are to be ``skipped``."""
        mine: dict[Key, list[tuple[float, float]]] = {key: [] for key in self.ready}
        wrong, faults = {key: Tally() for key in self.ready}, dict.fromkeys(self.ready, 0.0)
        # What the threads of some still do would hit the next: these take turns on their own.
        alone = [key for key in self.ready if contestant(key[0]).session]
        groups = [key for key in self.ready if key not in alone], alone
        skipped = max(skipped, int(all(groups)))
        self.start.prepare()
        for group, number in itertools.product(groups, range(-skipped, turns)):
            self.turn += 1
            wait = arrival.wait(number, self.transport)
            # In another order each time, so that none always follows the slowest; the same on all ranks.
            for key in random.Random(self.turn).sample(group, len(group)):
                elapsed_s, faulted = self.sample(*self.ready[key], wrong[key], wait)
                if number >= 0:
                    faults[key] += faulted / turns
                    mine[key].append((elapsed_s, 0.0 if wait is None else wait.came_s))
        answers = self.transport.gather_values((mine, wrong, faults))
        return {
            key: Samples(
                *self.in_time(after_last([times_s[key] for times_s, _, _ in answers])),
                memory=data.memory,
                chosen=prepared.chosen,
                start=self.start.name,
                tallies=[errors[key] for _, errors, _ in answers],
                page_faults=max(faulted[key] for _, _, faulted in answers),
            )
            for key, (prepared, data) in self.ready.items()
        }

    def sample(self, prepared: Prepared, data: Data, wrong: Tally, wait: Wait | None) -> tuple[float, float]:
        """Seconds from the common start, NaN if this rank was late for it; or of one of several calls in a row. And the
        page faults of a call."""
        data.fill(self.turn)
        faults = page_faults()
        elapsed_s, was_in_time = isolated(prepared.run, self.start, self.stream, wait)
        faults = page_faults() - faults
        prepared.untimed()
        wrong.look(data, self.turn, prepared.run)
        if self.case.cadence == "isolated":
            return elapsed_s if was_in_time else math.nan, faults
        data.clear()
        self.transport.barrier()
        loop = on_host if self.case.device == "cpu" else partial(streaming, stream=self.stream)
        calls, faults = calls_in_a_row(self.case.used_bytes), page_faults()
        elapsed_s = loop(prepared.run, self.between, calls)
        return elapsed_s, (page_faults() - faults) / calls

    def in_time(self, times_s: list[list[float]]) -> tuple[list[list[float]], int]:
        """From samples, a list per rank, those for which all ranks were in time: of the ranks whose times count, and of
        one of the parts that a call is made of. And how many others there are."""
        kept = [sample for sample in zip(*times_s, strict=True) if not any(map(math.isnan, sample))]
        found = [list(mine) for mine in zip(*kept, strict=True)] or [[] for _ in times_s]
        counted = found[: self.case.operation.clocks]
        each_part = [[elapsed_s / self.case.parts for elapsed_s in mine] for mine in counted]
        return each_part, len(times_s[0]) - len(kept)

    def free(self) -> None:
        for prepared, _ in self.ready.values():
            prepared.free()
