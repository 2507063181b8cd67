"""The live fabric of ``--update sharded``: each rank updates its shard, and the values are gathered, not the gradients.

    full        | reduce-scatter of gradients | all-gather of gradients | update, whole, on each rank
    sharded     | reduce-scatter of gradients | update of the shard | all-gather of values

The optimiser's state takes 1/P of the memory, and the update 1/P of the time. It runs on the engine's thread, right
before the all-gather. Values have the same bits as with whole updates, because an update is elementwise. They travel in
their own type, whatever the wire's is: with ``--wire fp16`` an all-gather of fp32 values sends twice the bytes.

Schedules do not know the difference. An ``all_reduce`` is carried out as its two halves, with the update between them:
``wait`` returns when the sum is there, and ``update`` waits for the values.

To cut buckets anew, or to write a checkpoint, the state is gathered: then every rank has all of it for a while.

Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1; Xu et al., arXiv 2004.13336.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.fabric.engine import PlanHandle, Step
from dear_mpi.training.fabric.fabric import Handle
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.fabric.rules import carried_out
from dear_mpi.training.line.bound import BoundShard
from dear_mpi.training.line.bucket import Bucket, Cut


class ShardedFabric(LiveFabric):
    """Starts and awaits the collectives of buckets, and updates this rank's shards between them."""

    binding = BoundShard

    def __init__(self, *args: Any, **options: Any) -> None:
        self.summed: list[Bucket] = []  # by an all_reduce that has no all-gather yet
        self.gathers: dict[Bucket, PlanHandle] = {}
        super().__init__(*args, **options)

    def parts_of(self, collective: str) -> tuple[str, ...]:
        return carried_out([collective], sharded=True)

    def travels(self, collective: str, bucket: Bucket) -> Array:
        bound = self.bound[bucket]
        return bound.values if collective == "all_gather" else bound.buffer

    def launch(self, collective: str, bucket: Bucket) -> PlanHandle:
        plan, *_ = self.plans_of(collective, bucket)
        key = collective, bucket.index
        if collective == "all_gather":
            update = Step("update", bucket.index, bucket, partial(self.update_own, bucket))
            return self.engine.start(partial(self.unless_skipped, plan), plan.name, key, before=[update])
        if collective == "all_reduce":
            self.summed.append(bucket)
        return self.engine.start(plan, plan.name, key)

    def update_own(self, bucket: Bucket) -> None:
        """On the engine's thread: update the own shard."""
        factor = self.own_factor
        if factor is not None:
            with np.errstate(all="ignore"):  # what is not finite is looked for, and said once
                self.bound[bucket].update_own(factor)

    def unless_skipped(self, gather: Plan) -> None:
        """Gather what was updated."""
        if self.own_factor is not None:
            gather()

    @property
    def own_factor(self) -> float | None:
        """What the verdict has said, which has been on the wire before; None: the iteration is to be skipped."""
        return 1.0 if self.verdict is None else self.verdict.factor

    def start(self, collective: str, bucket: Bucket) -> Handle:
        handle = super().start(collective, bucket)
        if self.verdict is None or not self.reduced:  # then the verdict on all gradients is on its way
            for each in self.summed:
                self.gathers[each] = self.launch("all_gather", each)
            self.summed.clear()
        return handle

    def follow(self, order: Sequence[Key] | None) -> None:
        super().follow(None if order is None else self.with_gathers(order))

    def with_gathers(self, order: Sequence[Key]) -> list[Key]:
        """An order with the all-gather of each all_reduce: right after it, or at the end if there is a verdict."""
        gathers = {key: ("all_gather", key[1]) for key in order if key[0] == "all_reduce"}
        if self.verdict is None:
            return [each for key in order for each in ((key, gathers[key]) if key in gathers else (key,))]
        return [*order, *gathers.values()]

    def update(self, bucket: Bucket) -> None:
        self.rules.update(bucket)
        gather = self.gathers.pop(bucket, None)
        if gather is not None:
            self.wait_exposed(gather)
        if self.factor() is not None:
            self.bound[bucket].updated()

    def whole_state(self) -> Iterator[Array]:
        """Collective: the optimiser's state of the whole line, array by array, on all ranks."""
        shards, transport = self.arena.shards, self.world.transport
        for own in self.arena.state:
            empty_like = array_module(own).empty_like
            gathered = empty_like(self.arena.values, dtype=own.dtype)
            gathered.reshape(shards.ranks, -1)[shards.rank] = own
            with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True) as plan:
                plan()
            line = empty_like(gathered)
            shards.on_line(gathered, self.buckets, line)
            yield line

    @contextmanager
    def state_line(self, number: int) -> Iterator[Array]:
        own = self.arena.state[number]
        line = array_module(own).zeros(self.arena.values.shape, own.dtype)
        yield line
        self.arena.shards.from_line(line, self.buckets, own)

    def cut(self, buckets: Cut) -> None:
        """Collective: go on with other buckets. The state moves to the ranks that have its shards now."""
        lines = list(self.whole_state())
        super().cut(buckets)
        for own, line in zip(self.arena.state, lines, strict=True):
            self.arena.shards.from_line(line, buckets, own)
