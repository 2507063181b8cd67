"""A trainer on the virtual fabric: for rehearsals, predictions and tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.training.fabric.foresight import Nominal
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Price, Slowdown, VirtualFabric
from dear_mpi.training.fabric.virtual_use import Noise, VirtualMeter, VirtualUse, steady
from dear_mpi.training.log.times import Times
from dear_mpi.training.routes.find import priced
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Trainer

WARM = 3  # iterations before the pipeline is as full as it will be


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an iteration takes, in seconds, and what its fabric is told of it.

    Attributes:
        forward_s, backward_s: of each use of a layer, in the order of the forward pass; of a part of a batch.
        price: of a collective of a bucket.
        parts: into how many a batch is split.
        loss_s: of the sum of the loss.
        verdict_s: of the verdict on all gradients.
        update_s: of the optimiser, for each element.
        rest_s: of an iteration between forward and backward, for what is no layer.
        ranks: their number.
        slowdown: see ``VirtualFabric``.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    price: Price = lambda leg, bucket: 0.0
    parts: int = 1
    loss_s: float = 0.0
    verdict_s: float = 0.0
    update_s: float = 0.0
    rest_s: float = 0.0
    ranks: int = 1
    slowdown: Callable[[float], Slowdown] | None = None


class VirtualTrainer(Trainer):
    """Runs iterations that have no arrays: the one predictor, for rehearsals, tuning and ``simulate``.

    Args:
        kind: of the schedule.
        rules: its book, with the buckets and the route.
        foreseen: whether the schedule orders its iteration by what it costs.
        noise: see ``VirtualUse``.
        compute, kept: see ``VirtualFabric``.
    """

    def __init__(
        self,
        kind: type[Schedule],
        rules: Rules,
        costs: Costs,
        *,
        foreseen: bool = True,
        noise: Noise = steady,
        compute: Callable[[Any], Any] = lambda seconds: seconds,
        kept: int = 1,
    ) -> None:
        fabric = VirtualFabric(
            rules,
            price=costs.price,
            loss_s=costs.loss_s,
            verdict_s=costs.verdict_s,
            update_s=lambda bucket: bucket.count * costs.update_s,
            ranks=costs.ranks,
            slowdown=costs.slowdown,
            compute=compute,
            kept=kept,
        )
        schedule, times = kind(fabric), zip(costs.forward_s, costs.backward_s, strict=True)
        if foreseen:
            price = priced(rules.route, costs.price)
            nominal = Nominal(costs.forward_s, costs.backward_s, price, judged=rules.judged)
            schedule.order = tuple(schedule.ordered(nominal) or ()) or None
        uses = [VirtualUse(fabric, number, *each, noise) for number, each in enumerate(times)]
        meter = VirtualMeter(fabric, costs.rest_s)
        super().__init__(uses, NoLoss(), meter, schedule, rules, accumulate=costs.parts)
        self.virtual = fabric
        self.first = False  # there are no gradients to inspect, and no flush after that

    def warm_up(self) -> None:
        """Fill the pipeline."""
        for _ in range(WARM):
            self.one()

    def one(self) -> Times:
        """An iteration."""
        return self.iteration(np.zeros(0), np.zeros(0), 0)[1]
