"""A bucket, bound to the memory of an arena: what packs it, and what updates its values when it has been reduced.

Whatever goes wrong with a gradient on one rank ends as a NaN or an infinity in the sum, which is the same on all ranks.
The update tells whether it met one: so all ranks find it in the same iteration, without a message. Where each rank
updates a shard, one alone meets it. It then leaves NaN at the beginning of its shard, where all look when they have
gathered the values.
"""

from __future__ import annotations

import math
from typing import Any

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.update import updater
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Bucket

__all__ = ["BoundBucket", "BoundShard"]


class BoundBucket:
    """A bucket with its part of the wire, the values and the optimiser's state.

    Args:
        finite: a boolean array of one element, which turns False when a summed gradient is not finite.

    Attributes:
        buffer, values: its gradients as they travel, and its parameters: views into the arena.
        steps: how often the optimiser has been applied to this rank's shard.
        updates: how often all of its parameters have been updated.
    """

    def __init__(self, bucket: Bucket, arena: Arena, finite: Array) -> None:
        self.bucket, self.arena, self.finite = bucket, arena, finite
        span, own = slice(bucket.start, bucket.stop), arena.shards.of(bucket)
        self.buffer, self.values, self.own = arena.wire[span], arena.values[span], arena.values[own]
        self.steps = self.updates = arena.updates
        self.packing, self.unpacking = arena.packing(bucket), arena.unpacking(bucket)
        state = [array[arena.shards.state(bucket)] for array in arena.state]
        self.apply = updater(arena.wire[own], self.own, state, arena.optimizer, finite=self.seen)

    @property
    def seen(self) -> Array:
        """What the optimiser turns False."""
        return self.finite

    def pack(self) -> None:
        """Bring the gradients onto the wire; layers have written them there already, unless it has another type."""
        for call in self.packing:
            call()

    def step(self, factor: float) -> None:
        """Apply the optimiser to this rank's shard, with the reduced gradients in the buffer, times a factor."""
        self.apply(self.arena.optimizer_at(self.steps), self.steps + 1, factor)
        self.steps += 1

    def updated(self) -> None:
        """All values are new: bring them to the parameters that stay where they are."""
        self.updates += 1
        self.unpack()

    def unpack(self) -> None:
        for call in self.unpacking:
            call()

    def complaint(self) -> str:
        """What is wrong with summed gradients that are not finite, the same on all ranks."""
        wire, advice = self.buffer.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        what = f"gradients, summed in {wire}, are infinite or not a number"
        return f"{self.bucket}: {what} in iteration {self.updates - 1}: {advice}"


class BoundShard(BoundBucket):
    """The same where this rank updates a shard, perhaps on another thread than the one that looks at the result."""

    def __init__(self, bucket: Bucket, arena: Arena, finite: Array) -> None:
        self.mine = array_module(finite).ones_like(finite)
        super().__init__(bucket, arena, finite)

    @property
    def seen(self) -> Array:
        mine: Array = self.mine
        return mine

    def step(self, factor: float) -> None:
        super().step(factor)
        xp: Any = array_module(self.own)
        self.own[:1] = xp.where(self.mine, self.own[:1], math.nan)

    def updated(self) -> None:
        firsts = self.values[:: max(1, self.own.size)]
        self.finite &= array_module(firsts).isfinite(firsts).all()
        super().updated()
