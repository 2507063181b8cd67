"""The trainer: one iteration of any model under any schedule. It knows neither MPI nor derivatives.

The path of a gradient: ``layer.backward`` writes it into its bucket, ``schedule.after_backward`` hands the bucket to
the ``Exchange``, whose ``Engine`` runs the collective's ``Plan``; when the schedule says so the bucket updates the
parameters, at the latest in ``schedule.before_forward`` of the layer that needs them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.errors import AgreedError
from dear_mpi.exchange import Exchange
from dear_mpi.kernels.array import Array
from dear_mpi.layers.parameter import Layer, Loss
from dear_mpi.schedules import Schedule

__all__ = ["LossMeter", "Times", "Trainer", "TrainingError"]


class TrainingError(AgreedError):
    """Training cannot go on."""


@dataclass(frozen=True)
class Times:
    """Where the seconds of one iteration went, on this rank. ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


class LossMeter:
    """Sums the ranks' losses, hidden under the backward pass: started before it, read after it.

    Constructing is collective.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.value = np.zeros(1)
        self.plan = make_plan("all_reduce", self.value, exchange.world.transport)

    def start(self, loss: float) -> None:
        self.value[0] = loss
        self.handle = self.exchange.engine.start(self.plan, "all_reduce of the loss")

    def read(self) -> float:
        self.exchange.wait(self.handle)
        return float(self.value[0])

    def free(self) -> None:
        self.plan.free()


class Trainer:
    """Runs iterations of a model; trainers with several schedules may take turns on one."""

    def __init__(self, layers: Sequence[Layer], loss: Loss, meter: LossMeter, schedule: Schedule) -> None:
        self.layers, self.loss, self.meter, self.schedule = tuple(layers), loss, meter, schedule
        self.exchange = meter.exchange
        self.done = 0

    def iteration(self, x: Array, targets: Array, scale: float) -> tuple[float, Times]:
        """One pass forward and backward.

        Args:
            x, targets: this rank's part of the batch.
            scale: 1 / number of targets in the whole batch. Gradients are summed over ranks and averaged here, in
                the loss, once; so ranks may have unequal parts.

        Returns:
            The mean loss over the batch of the whole job, and where the time went.

        Raises:
            TrainingError: the loss is infinite or not a number.
        """
        begin_s, exposed_s = time.perf_counter(), self.exchange.exposed_s
        x, forward_s = self.forward(x)
        self.meter.start(self.loss.forward(x, targets) * scale)
        backward_s = self.backward(self.loss.backward(scale))
        self.schedule.end_backward()
        loss = self.meter.read()
        end_s = time.perf_counter()
        if not math.isfinite(loss):
            self.schedule.flush()
            raise TrainingError(f"the loss is {loss} in iteration {self.done}: try a lower learning rate (--lr)")
        self.done += 1
        return loss, Times(end_s - begin_s, forward_s, backward_s, self.exchange.exposed_s - exposed_s)

    def forward(self, x: Array) -> tuple[Array, float]:
        """The model's output, and the seconds that its layers took."""
        spent_s = 0.0
        for number, layer in enumerate(self.layers):
            self.schedule.before_forward(number)
            begin_s = time.perf_counter()
            x = layer.forward(x)
            spent_s += time.perf_counter() - begin_s
        return x, spent_s

    def backward(self, dy: Array) -> float:
        """Let every layer write its gradients; the seconds that they took."""
        spent_s = 0.0
        for number in reversed(range(len(self.layers))):
            begin_s = time.perf_counter()
            dy = self.layers[number].backward(dy)
            spent_s += time.perf_counter() - begin_s
            self.schedule.after_backward(number)
        return spent_s
