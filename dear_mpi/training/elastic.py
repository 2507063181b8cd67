"""Train on when ranks die: ``Session(elastic=True)``.

Before a bucket's update each rank copies its values and optimiser state (``kept.py``). A bucket is updated only after
all ranks have sent its gradients, so after all ranks have the state before. Thus survivors always have a state in
common:

    rank 0    state 7 of all buckets, and the copies of state 6
    rank 1    state 7 of bucket 0, its copy of state 6, and state 6 of bucket 1      both continue from state 6

They agree on it by a bit mask, make a new group of the survivors, and the caller repeats the iterations since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.errors import AgreedError, CollectiveError, RanksLost, lost_in, name_ranks
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.elastic import BITS, Elastic, present
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter, is_exchanging
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.checkpoint import broadcast
from dear_mpi.training.fabric.live import Engine
from dear_mpi.training.fabric.statistic import Norm
from dear_mpi.training.fusion.decisions import Decisions
from dear_mpi.training.group import WorkerGroup

T = TypeVar("T")


@dataclass(frozen=True)
class Members:
    """Record which ranks, by their numbers in the whole job, trained from an iteration on."""

    iteration: int  # the first one, from 0
    ranks: tuple[int, ...]
    lost: tuple[int, ...] = ()
    noticed: str = ""  # what this rank was doing
    time: str = ""
    repair_s: float = 0.0


def elastic_world(comm: Any) -> tuple[World, Elastic]:
    """Return a world whose ranks may die, and its transport. Raises ValueError if ``comm`` has none, on all ranks."""
    world = comm if isinstance(comm, World) else World(comm)
    if (found := present(world.transport)) is None:
        raise ValueError("elastic needs ranks that may die: begin with run_world(function, elastic=True)")
    return world, found


def check_elastic(group: WorkerGroup, decisions: Decisions) -> None:
    """Refuse sessions with a state that is not yet taken along. Raises ValueError."""
    options = group.options
    for wrong, what in (
        (options.device != "cpu", f"MPI that outlives ranks was not tried on device {options.device!r}"),
        (len(group.schedules) > 1, "one session trains with one schedule"),
        # PyTorch's clip is a norm
        (not isinstance(options.statistic, Norm | None), "loss_scale and statistic keep a state"),
        (runner_of(options.algorithm) != "messages", f"algorithm {options.algorithm!r} does not notice a death"),
        (any(map(is_exchanging, group.layers)), "layers exchange data"),
        (decisions.by_time or not decisions.tuning.over, f"fusion {options.fusion!r} is decided from measured times"),
    ):
        if wrong:
            raise ValueError(f"elastic must be left out: {what}")


class Survival:
    """A block that repairs a session if ranks die inside, and then raises RanksLost with the iteration to repeat.

    Attributes:
        log: who trained, from which iteration on.
        done: iterations whose losses the caller has.
        loading: no state is complete, because one is being loaded.
    """

    def __init__(self, session: Any, transport: Elastic) -> None:
        self.session, self.transport, self.loading, self.done = session, transport, False, 0
        self.log = [Members(0, self.transport.members)]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        lost = lost_in(error)
        if error is None:
            self.done = self.session.iterations
        if lost is not None and lost.iteration is None:
            raise self.repair(str(error)) from error

    @property
    def report(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self.log]

    def repair(self, noticed: str) -> RanksLost:
        """Continue with the survivors from their last common state. Collective over the survivors."""
        begin, before, session = time.perf_counter(), self.transport.members, self.session
        self.transport.revoke()
        session.engine.__exit__(RanksLost)
        if session.engine.thread.is_alive():
            raise RuntimeError("the engine does not end, so its memory may still change")
        group = session.group
        states = set[int]() if self.loading else kept_states(group, self.done)
        target = self.common(states)
        for kept in group.kept:
            if kept.bound.own_updates > target:
                kept.undo()
        with suppress(CollectiveError):
            group.plans.close()  # except those that were broken off: messages may still use their memory
        while True:
            try:
                self.rebuild(group, target, before)
                break
            except Exception as error:
                if lost_in(error) is None:
                    raise
                session.engine.__exit__(RanksLost)
                self.common({target})
        ranks, spent_s = self.transport.members, time.perf_counter() - begin
        lost = sorted({*before} - {*ranks})
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        at, iteration = self.done, target + group.fabric.skipped
        self.done = iteration
        void = [each for each in self.log if each.iteration >= iteration]  # these groups' iterations are repeated
        named = sorted({*lost, *(rank for each in void for rank in each.lost)})
        self.log = [*self.log[: len(self.log) - len(void)], Members(iteration, ranks, (*named,), noticed, now, spent_s)]
        go_on = f"{name_ranks(ranks)} {'continue' if len(ranks) > 1 else 'continues'} from iteration {iteration}"
        said = f"{name_ranks(lost)} died in iteration {at}, at {now}: {go_on}, after {1e3 * spent_s:.0f} ms"
        return RanksLost(said, ranks=lost, where=noticed, iteration=iteration)

    def common(self, states: Collection[int]) -> int:
        """Agree on the last state that all survivors have."""
        mask = self.transport.repair(sum(1 << state % BITS for state in states))
        found = [state for state in states if mask >> state % BITS & 1]
        if not mask:
            raise AgreedError("a rank died while a state was loaded, so survivors have no common state: start again")
        return max(found)

    def rebuild(self, old: WorkerGroup, target: int, before: Sequence[int]) -> None:
        """Make a new group for the state of the old one's members; ranks compare options and parameters. Collective."""
        session = self.session
        states = old.arena.state
        if any(kept.states for kept in old.kept):
            states = gathered(old, target, holders(before, self.transport.members), session.world.transport)
        session.group.leave()
        own_memory(session.parameters)
        session.options.optimizer.begin_cut()
        agree(session.world.transport, session.name, lambda: session.build(session.execution))
        session.engine = Engine(session.group.streams)
        session.open(session.engine)
        new = session.group
        new.arena.take_state([moved(state, old.arena, new.arena) for state in states])
        new.restored(target + old.fabric.skipped, target, None)

    def outlive(self, call: Callable[[], T], again: Callable[[RanksLost], object]) -> T:
        """Return ``call()`` once all survivors have completed it; call ``again`` with each loss before. Collective."""
        while True:
            try:
                with self:
                    self.transport.commit()  # no rank trains, and may die, while another has not come here
                    found = call()
                    self.session.finish()
                return found
            except RanksLost as lost:
                if lost.iteration is None:
                    raise
                loss = lost
            again(loss)


def kept_states(group: WorkerGroup, done: int) -> set[int]:
    """Return the numbers of updates after which this rank has all buckets, and has reported the losses."""
    fabric = group.fabric
    updates = {bound.own_updates for bound in fabric.bound.values()} or {fabric.oldest}
    low = min(updates)
    found = {low}
    if len(updates) == 1 and low > fabric.oldest:
        complete = all(bound.updates == low for bound in fabric.bound.values())  # with the shards of others
        found = {low, low - 1} if complete else {low - 1}
    return {each for each in found if each <= done - fabric.skipped}


def holders(before: Sequence[int], members: Sequence[int]) -> list[int]:
    """Return the rank that keeps the shard of each earlier rank: itself, or the next one.

    >>> holders([0, 1, 4, 5], [0, 1, 5]), holders([0, 1, 2, 3], [1, 3])
    ([0, 1, 2, 2], [0, 0, 1, 1])
    """
    found = list[int]()
    for rank, member in enumerate(before):
        keepers = member, before[(rank + 1) % len(before)]
        if not (alive := [each for each in keepers if each in members]):
            what = f"{name_ranks(sorted(keepers))} died at once, and both copies of a shard of the optimizer state"
            raise AgreedError(f"{what} with them: go on from the last checkpoint (--resume), or start again")
        found.append(members.index(alive[0]))
    return found


def gathered(old: WorkerGroup, target: int, keepers: Sequence[int], transport: Transport) -> list[Array]:
    """Return the whole optimiser state, from the keeper of each shard. Collective."""
    arena = old.arena
    found = [np.zeros(arena.values.shape, state.dtype) for state in arena.state]
    for rank, keeper in enumerate(keepers):
        places = [state[arena.shards.shard(kept.bound.bucket, rank)] for kept in old.kept for state in found]
        packed = np.zeros(sum(place.nbytes for place in places), np.uint8)
        if keeper == transport.rank:
            np.concatenate([kept.states[target % 2].parts[rank] for kept in old.kept], out=packed)
        broadcast(packed, transport, keeper)
        ends = [*accumulate(place.nbytes for place in places)]
        for place, end in zip(places, ends, strict=True):
            place.view("u1")[...] = packed[end - place.nbytes : end]
    return found


def moved(array: Array, old: Arena, new: Arena) -> Array:
    """Copy an array as long as the old flat buffer, tensor by tensor, to one as long as the new buffer."""
    found = np.zeros(new.values.shape, array.dtype)
    for tensor in range(len(new.layout.shapes)):
        new.view(found, tensor)[...] = old.view(array, tensor)
    return found


def own_memory(parameters: Collection[Parameter]) -> None:
    """Take parameters out of a flat buffer, before they move to another one."""
    copies: dict[int, Any] = {}
    for each in parameters:
        if each.trained and each.rebind:
            each.value = copies.setdefault(id(each.value), each.value.copy())
            each.grad = np.zeros_like(each.grad)
