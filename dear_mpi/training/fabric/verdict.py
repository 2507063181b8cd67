"""What all ranks must know of the summed gradients before any of them is used: their norm, and whether they are finite.

Each rank adds up the squares of its own shards, and an all-reduce of 34 kB adds up the ranks' sums. It comes after the
last reduction of an iteration. It costs its time on the wire, once in an iteration. DeAR waits for nothing more,
because its all-gathers come after the last reduce-scatter anyway. A schedule that updates a bucket before all are on
their way is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.exact import COUNT, root_of, sums_of_squares
from dear_mpi.training.fabric.loss_scale import LossScale


class Verdict:
    """By which factor the gradients of an iteration are multiplied; None if they are not used at all.

    Constructing is collective. A call, on the engine's thread, is made after the last reduction.

    Args:
        shards: the parts of the wire that this rank owns.
        clip: the largest norm of all gradients; longer ones are scaled down to it, and not, as by ``clip_grad_norm_``
            of torch, by clip / (norm + 1e-6). None for no limit.
        loss_scale: what gradients were multiplied by.
    """

    def __init__(
        self,
        shards: Sequence[Array],
        transport: Transport,
        *,
        slab: Slab,
        clip: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.shards, self.clip, self.loss_scale = shards, clip, loss_scale
        self.sums = slab.zeros(COUNT, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.sums, transport, algorithm="auto", slab=slab)
        self.plan.name = "all_reduce of the norm"
        self.factor: float | None = 1.0
        self.norm = 0.0

    def __call__(self) -> None:
        self.sums[...] = 0
        for shard in self.shards:
            self.sums += sums_of_squares(shard)
        self.plan()
        scale = 1.0 if self.loss_scale is None else self.loss_scale.scale
        self.norm = root_of(self.sums) / scale
        self.factor = self.factor_of(self.norm, scale)

    def factor_of(self, norm: float, scale: float) -> float | None:
        """What gradients of this norm are multiplied by. If it is not finite: None where the loss scale can be halved,
        to skip the iteration; else NaN, which the update then finds."""
        finite = norm < float("inf")
        if self.loss_scale is not None:
            if not finite and self.loss_scale.overflowed():
                return None
            if finite:
                self.loss_scale.fitted()
        if not finite:
            return math.nan
        return (1.0 if self.clip is None or norm <= self.clip else self.clip / norm) / scale

    def free(self) -> None:
        self.plan.free()
