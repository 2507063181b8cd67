"""A bucket, bound to the memory of an arena: what packs it, and what updates its values when it has been reduced.

Whatever goes wrong with a gradient on one rank ends as a NaN or an infinity in the sum, which is the same on all ranks.
The update tells whether it met one: so all ranks find it in the same iteration, without a message.
"""

from __future__ import annotations

import numpy as np

from dear_mpi.kernels.array import array_module
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.kernels.pack_plan import PackPlan
from dear_mpi.kernels.update import updater
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Bucket

__all__ = ["BoundBucket"]


class BoundBucket:
    """A bucket with its part of the wire, the values and the optimiser's state.

    Attributes:
        buffer: what travels, a view into the arena.
        updates: how often it has been updated.
    """

    def __init__(self, bucket: Bucket, arena: Arena) -> None:
        self.bucket, span = bucket, slice(bucket.start, bucket.stop)
        self.buffer, values = arena.wire[span], arena.values[span]
        self.updates = arena.updates
        self.packing, self.unpacking = arena.packing(bucket), arena.unpacking(bucket)
        self.finite = array_module(values).ones(1, np.bool_)
        plan = PackPlan.of([(bucket.count,)], self.buffer.dtype, 1)
        state = [array[span] for array in arena.state]
        self.apply = updater(self.buffer, plan, [values], [state], arena.optimizer, finite=self.finite)

    def pack(self) -> None:
        """Bring the gradients onto the wire; layers have written them there already, unless it has another type."""
        for step in self.packing:
            step()

    def update(self, optimizer: Optimizer, factor: float = 1.0) -> None:
        """Apply the optimiser with the reduced gradients in the buffer, times a factor."""
        self.updates += 1
        self.apply(optimizer, self.updates, factor)
        self.unpack()

    def unpack(self) -> None:
        """Bring values to the parameters that stay where they are."""
        for step in self.unpacking:
            step()

    def complaint(self) -> str | None:
        """What was wrong with the summed gradients of an update, the same on all ranks; None if nothing was."""
        if bool(self.finite[0]):
            return None
        wire, advice = self.buffer.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        what = f"gradients, summed in {wire}, are infinite or not a number"
        return f"{self.bucket}: {what} in iteration {self.updates - 1}: {advice}"
