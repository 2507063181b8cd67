"""Exchange what a step needs besides gradients: one small sum over ranks, and rank 0's buffers.

tally     | tokens, hyperparameters | uses of each parameter |     an all-reduce for each step, after all gradients
buffers   | running means, ...                               |     a broadcast, under the backward pass
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import torch

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.kernels.array import Array
from dear_mpi.torch.tensors import dense, plain, tensor_of
from dear_mpi.torch.updates import UserUpdates, texts_of
from dear_mpi.training.events import EXCHANGE
from dear_mpi.training.fabric.statistic import Norm
from dear_mpi.training.group import WorkerGroup

EARLY = "updates shards while backward() runs, before step()"
OTHERS = "hyperparameters"  # those that were added to groups later
ANEW = "close() this one, change your own optimizer, and wrap that again"


class Clip(Norm):
    """Clip as ``torch.nn.utils.clip_grad_norm_`` does."""

    def factor(self, sums: Array) -> float:
        super().factor(sums)
        return self.of(1.0)

    def of(self, factor: float) -> float:
        """Return the factor of gradients that are to be multiplied by ``factor``, and then clipped."""
        return min(factor, (self.clip or 0.0) / (self.norm + 1e-6 / factor))


class Tally:
    """Sum over ranks what a step must know. Also the trainer's meter, though it knows no loss."""

    trouble = False
    error: AgreedError | None = None  # of a step that was not taken

    def __init__(self, group: WorkerGroup, updates: UserUpdates, *, alone: bool) -> None:
        self.fabric, self.updates, self.alone = group.fabric, updates, alone
        self.parameters, self.parts = [*updates.wrapped.values()], group.options.invariant or group.world.size
        self.names = [*dict.fromkeys(name for each in updates.groups for name in each), OTHERS]
        # on the host, also if there is a GPU: the host decides
        self.sums = np.zeros(2 + 2 * len(self.names) + len(self.parameters))
        self.plan = make_plan("all_reduce", self.sums, group.world.transport, algorithm="auto")
        group.plans.callback(self.plan.free)
        self.handle: Any = None

    def start(self, tokens: float | None) -> None:
        texts = texts_of(self.updates.groups)
        others = str([text for name, text in texts.items() if name not in self.names])
        checks = [crc32((texts | {OTHERS: others}).get(name, "").encode()) & 0xFFFF for name in self.names]
        uses = [parameter.tensor.grad is not None for parameter in self.parameters]
        squares = [check**2 for check in checks]  # exact
        self.sums[:] = tokens is not None, tokens or 0, *checks, *squares, *uses
        self.handle = self.alone or self.fabric.launch_act((EXCHANGE, 0), self.plan, "the step's sums")
        self.known = False

    def wait(self) -> None:
        """Wait for the sums, before the first update of a step."""
        if self.handle is None:
            raise ValueError(EARLY)
        if self.known:
            return
        if not self.alone:
            self.fabric.block(self.handle)
        size, updates, count = self.fabric.world.size, self.updates, len(self.names)
        given, tokens, *rest = self.sums.tolist()
        checks, squares, uses = rest[:count], rest[count : 2 * count], rest[2 * count :]
        wrong = ""
        if given and (given < size or tokens <= 0):
            found = f"on {given:g} of {size} ranks, {tokens:g} together"
            wrong = f"tokens must be given to step() on all ranks, and be above zero, not {found}"
        for name, check, square in zip(self.names, checks, squares, strict=True):
            if check**2 != size * square:  # they are the same for equal numbers only
                wrong = wrong or f"ranks have different {name} in optimizer.param_groups: compute it from equal values"
        if wrong:
            self.error = AgreedError(wrong)
            raise self.error
        updates.factor = self.parts / tokens if given else 1.0
        verdict = self.fabric.verdict
        if given and verdict is not None and verdict.factor is not None:
            (clip,) = verdict.statistics
            updates.factor = clip.of(updates.factor) / verdict.factor  # type: ignore[attr-defined]
        updates.unused = frozenset(each for each, count in zip(self.parameters, uses, strict=True) if not count)
        self.known = True

    def read(self) -> float:
        return 0.0

    def complaint(self) -> None:
        """Nothing is wrong with a loss."""


class Buffers:
    """Send rank 0's buffers, such as running means, to all ranks, hidden under the backward pass."""

    def __init__(self, model: Any, group: WorkerGroup) -> None:
        self.group = group
        self.places = [(own._buffers, name) for own in model.modules() for name, _ in own.named_buffers("", False)]
        sizes = [buffer.nbytes for buffer in self.now()]
        sent = group.slab.zeros(sum(sizes), np.dtype("u1"))
        self.parts = tensor_of(sent).split(sizes)
        self.plan = make_plan("broadcast", sent, group.world.transport, algorithm="auto", slab=group.slab)
        group.plans.callback(self.plan.free)

    def now(self) -> list[Any]:
        """Return the buffers, which a module may replace."""
        return [own[name] for own, name in self.places]

    def start(self) -> None:
        for buffer, part in zip(self.now(), self.parts, strict=True) if self.group.world.rank == 0 else ():
            part.copy_(dense(buffer).reshape(-1).view(torch.uint8))
        self.handle: Any = self.group.fabric.launch_act((EXCHANGE, 1), self.plan, "the buffers of rank 0")

    def take(self) -> None:
        self.group.fabric.block(self.handle)
        with plain(self.now()) as buffers:
            for buffer, part in zip(buffers, self.parts, strict=True):
                buffer.reshape(-1).view(torch.uint8).copy_(part)
