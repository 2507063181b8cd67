"""Backends take turns at one case: with the same data, call by call, so whatever else the machine does hits them
alike. One sample is one call on its slowest rank, from a barrier to the end; each result is checked.

Ours work in memory that the ranks of a host share, as in training with ``auto``, unless they are told not to; all
others in memory of their own, where the MPI libraries are faster.
"""

import itertools
import random
from collections.abc import Sequence

import numpy as np

from dear_mpi.bench.backends import BACKENDS, Backend, Setup, open_backend
from dear_mpi.bench.case import CannotRun, Case, Samples
from dear_mpi.bench.data import Data
from dear_mpi.ranks.streams import Streams
from dear_mpi.ranks.world import World

__all__ = ["Interleaved", "Key"]

Key = tuple[str, int]  # a backend and its segment_bytes


class Interleaved:
    """Collective: the backends of a case, prepared; ``left_out`` says why those are missing that cannot run it."""

    def __init__(self, case: Case, keys: Sequence[Key], world: World, streams: Streams) -> None:
        self.case, self.transport, self.stream, self.turn = case, world.transport, streams.compute, 0
        private = Data(case, world.rank, world.size, streams.put, lambda n: streams.put(np.zeros(n, np.uint8)))
        ours = private
        if case.device == "cpu" and case.memory == "shared" and any(name not in BACKENDS for name, _ in keys):
            ours = Data(case, world.rank, world.size, streams.put, world.transport.memory.allocate)
        self.backends: dict[Key, tuple[Backend, Data]] = {}
        self.left_out: dict[str, str] = {}
        for name, segment_bytes in keys:
            data = private if name in BACKENDS else ours
            try:
                backend = open_backend(name, Setup(case, data.x, data.out, world.transport, segment_bytes))
            except CannotRun as error:
                self.left_out[name] = str(error)
                continue
            self.backends[name, backend.segment_bytes or segment_bytes] = backend, data

    def run(self, turns: int) -> dict[Key, Samples]:
        """Collective: so many samples of each, after one turn that does not count."""
        mine: dict[Key, list[float]] = {key: [] for key in self.backends}
        wrong = dict.fromkeys(self.backends, 0)
        for group, counts in itertools.product(self.groups(), [False] + [True] * turns):
            self.turn += 1
            # In another order each time, so that nobody always comes behind the slowest; the same on all ranks.
            for key in random.Random(self.turn).sample(group, len(group)):
                backend, data = self.backends[key]
                data.fill(self.turn)
                self.transport.barrier()
                begin = self.stream.mark()
                backend.run()
                elapsed_s = self.stream.seconds(begin, self.stream.mark())  # to the end of the last kernel
                backend.untimed()
                wrong[key] += data.errors(self.turn)
                if counts:
                    mine[key].append(elapsed_s)
        answers = self.transport.gather_values((mine, wrong))
        found = {}
        for key in self.backends:
            times = np.array([elapsed_s[key] for elapsed_s, _ in answers])
            errors = sum(errors[key] for _, errors in answers)
            found[key] = Samples(times.max(axis=0).tolist(), times.argmax(axis=0).tolist(), errors)
        return found

    def groups(self) -> list[list[Key]]:
        """Who takes turns. What the threads of some still do would hit whoever comes next: these are on their own."""
        alone = [key for key in self.backends if key[0] in BACKENDS and BACKENDS[key[0]].alone]
        return [[key for key in self.backends if key not in alone], alone]

    def free(self) -> None:
        for backend, _ in self.backends.values():
            backend.free()
