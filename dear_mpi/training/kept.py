"""Keep what ranks need to go back one update after a death (``elastic.py``), of each bucket.

    full       before update 7    copies of values 6 and of state 6
    sharded    before update 7    a copy of values 6, of all shards
               after update 7     state 7 of the own shard, also sent to the next rank; states 6 stay

    rank 2     values 6, 7    states 6, 7 of its shard    states 6, 7 of rank 1's shard

A rank sends its new values only after it has received the predecessor's new state. So a rank that has gathered values 7
knows that state 7 of each shard is on two ranks. It stays there until update 9, which needs gradients of ranks with
values 8.
"""

from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from dear_mpi.collectives.algorithms.ring import to_next
from dear_mpi.collectives.plans.plan import RunningOperation
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.calls import copier
from dear_mpi.training.buckets.bound import BoundBucket


class Kept:
    """Copies of a bucket, made around each update; ``plans`` closes what they need.

    Attributes:
        states: after even and odd updates; none if ``undo`` brings back all of the state.
    """

    def __init__(self, bound: BoundBucket, transport: Transport, plans: ExitStack) -> None:
        self.bound, shared = bound, bound.arena.sharded and transport.size > 1 and bool(bound.state)
        arrays = [bound.values] if shared else [bound.values, *bound.state]
        own: Any = () if bound.arena.optimizer.in_arrays else bound.updaters
        self.copies = [*map(KeptArray, arrays), *own]
        bound.before = [each.keep for each in self.copies]
        self.states = [SharedState(bound, transport) for _ in range(2 * shared)]
        for each in self.states:
            plans.callback(each.free)
        if shared:
            bound.copy_state = self.share

    def share(self) -> None:
        """Copy this shard's present state, and exchange it. Collective."""
        self.states[self.bound.own_updates % 2].update()

    def undo(self) -> None:
        """Go back to before the last update."""
        for each in self.copies:
            each.undo()
        self.bound.own_updates -= 1
        self.bound.unpack()


class KeptArray:
    """Copy an array before an update; ``keep`` and ``undo`` as of PyTorch's optimisers."""

    def __init__(self, array: Array) -> None:
        copy = array.copy()
        self.keep, self.undo = copier(copy, array), copier(array, copy)


class SharedState:
    """Hold the state of this rank's shard, and of its predecessor's.

    Attributes:
        parts: bytes of all arrays of the optimizer, by rank.
    """

    def __init__(self, bound: BoundBucket, transport: Transport) -> None:
        rank, size, nbytes = transport.rank, transport.size, sum(array.itemsize for array in bound.state)
        near = rank, (rank - 1) % size
        counts = enumerate(bound.arena.shards.partitions[bound.bucket].counts)
        borders = [*accumulate((nbytes * count * (each in near) for each, count in counts), initial=0)]
        memory = np.zeros(borders[-1], np.uint8)  # as new states are
        self.parts = {each: memory[borders[each] : borders[each + 1]] for each in near}
        ends = accumulate((array.nbytes for array in bound.state), initial=0)
        own = [self.parts[rank][start:stop] for start, stop in pairwise(ends)]
        self.copying = [copier(copy, array.view("u1")) for copy, array in zip(own, bound.state, strict=True)]
        segment, tag = default_segment(transport.hosts), transport.next_tag()
        run = MessagesRun(to_next(rank, size), memory, borders, transport, op="sum", segment=segment, tag=tag)
        self.operation = RunningOperation(run, f"the copy of the optimizer state of {bound.bucket}", transport)

    def update(self) -> None:
        for call in self.copying:
            call()
        self.operation.transport.one_thread.run(self.operation.whole)

    def free(self) -> None:
        if self.operation.broken is None:  # else messages may still use the memory
            self.operation.run.free()
