"""A trainer on the virtual fabric: for rehearsals, predictions and tuning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.training.fabric.foresight import Nominal
from dear_mpi.training.fabric.virtual import VirtualFabric
from dear_mpi.training.fabric.virtual_use import Noise, VirtualMeter, VirtualUse, steady
from dear_mpi.training.log.times import Times
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Trainer

WARM = 3  # iterations before the pipeline is as full as it will be


class VirtualTrainer(Trainer):
    """Runs iterations that have no arrays.

    Args:
        schedule: which has its fabric.
        times: seconds of each use of a layer, forward and backward.
        rest_s: seconds of an iteration between forward and backward, for what is no layer.
        noise: see ``VirtualUse``.
    """

    def __init__(
        self,
        fabric: VirtualFabric,
        schedule: Schedule,
        times: Iterable[tuple[float, float]],
        *,
        rest_s: float = 0.0,
        noise: Noise = steady,
        accumulate: int = 1,
    ) -> None:
        uses = [VirtualUse(fabric, number, *each, noise) for number, each in enumerate(times)]
        super().__init__(uses, NoLoss(), VirtualMeter(fabric, rest_s), schedule, fabric.rules, accumulate=accumulate)
        self.first = False  # there are no gradients to inspect, and no flush after that

    @classmethod
    def foreseen(cls, fabric: VirtualFabric, kind: type[Schedule], nominal: Nominal, **options: Any) -> VirtualTrainer:
        """One whose layers take their nominal times, and whose schedule orders its iteration by them."""
        schedule = kind(fabric)
        schedule.order = tuple(schedule.ordered(nominal) or ()) or None
        return cls(fabric, schedule, zip(nominal.forward_s, nominal.backward_s, strict=True), **options)

    def warm_up(self) -> None:
        """Fill the pipeline."""
        for _ in range(WARM):
            self.one()

    def one(self) -> Times:
        """An iteration."""
        return self.iteration(np.zeros(0), np.zeros(0), 0)[1]
