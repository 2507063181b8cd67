"""Contestants take turns at one case: with the same data, call by call, so whatever else the machine does hits them
alike. A sample is one call, whose result is checked, or (``streaming``) the mean over calls in a row after such a one.

Each works in the memory that it would have in a user's program: ours in memory that the ranks of a host share where
they make use of it, as in training, unless they are told otherwise; all others in private memory.
"""

import itertools
import random
import time
from collections.abc import Sequence
from functools import cache, partial

from dear_mpi.bench.arrival import TOGETHER, Arrival, Wait, after_last
from dear_mpi.bench.case import CannotRun, Case, Prepared, Samples, Setup
from dear_mpi.bench.contestants import contestant, prepare
from dear_mpi.bench.data import Data
from dear_mpi.bench.native import OTHERS
from dear_mpi.collectives.plans.reach import wants_shared
from dear_mpi.ranks.streams import Streams
from dear_mpi.ranks.world import World

Key = tuple[str, int]  # a contestant and its segment_bytes
SMALL_BYTES = 16 * 1024
CALLS = 100, 10  # in a row: of small buffers, and of all others


def wanted_memory(name: str, case: Case, hosts: Sequence[int]) -> str:
    """Where the buffers of a contestant are to be."""
    if case.device != "cpu":
        return "device"
    shared = contestant(name).is_plan and case.memory != "private"
    if shared and case.memory == "auto":
        shared = wants_shared(name, hosts, case.collective, case.used_bytes)
    return "shared" if shared else "private"


def needed_bytes(case: Case, names: Sequence[str], hosts: Sequence[int]) -> int:
    """What a rank needs at least: buffer, data and what is expected, in each kind of memory and under each library."""
    makers = {name: contestant(name).maker for name in names}
    homes = {maker if maker in OTHERS else wanted_memory(name, case, hosts) for name, maker in makers.items()}
    return 3 * case.used_bytes * len(homes)


class Interleaved:
    """Collective: the contestants of a case, prepared; ``left_out`` says why those are missing that cannot run it."""

    def __init__(self, case: Case, keys: Sequence[Key], world: World, streams: Streams) -> None:
        self.case, self.transport, self.stream, self.turn = case, world.transport, streams.compute, 0
        self.data = cache(partial(Data, case, world, streams))  # by memory
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

    def run(self, turns: int, arrival: Arrival = TOGETHER) -> dict[Key, Samples]:
        """Collective: so many samples of each, after one turn that does not count."""
        mine: dict[Key, list[tuple[float, float]]] = {key: [] for key in self.ready}
        wrong = dict.fromkeys(self.ready, 0)
        # What the threads of some still do would hit the next: these take turns on their own.
        alone = [key for key in self.ready if contestant(key[0]).session]
        groups = [key for key in self.ready if key not in alone], alone
        for group, number in itertools.product(groups, range(-1, turns)):
            self.turn += 1
            wait = arrival.wait(number, self.transport)
            # In another order each time, so that none always follows the slowest; the same on all ranks.
            for key in random.Random(self.turn).sample(group, len(group)):
                prepared, data = self.ready[key]
                data.fill(self.turn)
                elapsed_s = self.call_s(prepared, wait=wait)
                prepared.untimed()
                wrong[key] += data.errors(self.turn)
                if self.case.cadence == "streaming":
                    data.clear()
                    elapsed_s = self.call_s(prepared, CALLS[data.x.nbytes > SMALL_BYTES])
                if number >= 0:
                    mine[key].append((elapsed_s, 0.0 if wait is None else wait.came_s))
        answers = self.transport.gather_values((mine, wrong))
        return {
            key: Samples(
                after_last([times_s[key] for times_s, _ in answers]),
                sum(errors[key] for _, errors in answers),
                data.memory,
                prepared.chosen,
            )
            for key, (prepared, data) in self.ready.items()
        }

    def call_s(self, prepared: Prepared, calls: int = 1, *, wait: Wait | None = None) -> float:
        """The mean seconds of calls in a row, each from a barrier to the end of its last kernel; ``wait`` follows the
        barrier."""
        elapsed_s = 0.0
        barrier, run, mark, seconds = self.transport.barrier, prepared.run, self.stream.mark, self.stream.seconds
        for _ in range(calls):
            barrier()
            begin = mark()
            if wait is not None:
                wait.since(time.perf_counter())
            run()
            elapsed_s += seconds(begin, mark())
        return elapsed_s / calls

    def free(self) -> None:
        for prepared, _ in self.ready.values():
            prepared.free()
