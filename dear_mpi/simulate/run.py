"""Train a model on the virtual fabric, under one schedule, and say where the time of an iteration went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.simulate.model import Model
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Price, VirtualFabric, VirtualMeter, VirtualUse, Wait
from dear_mpi.training.fusion import borders
from dear_mpi.training.line.bucket import Cut, cut
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import SCHEDULES, Schedule
from dear_mpi.training.trainer import Times, Trainer

__all__ = ["Prediction", "predict"]

WARM = 3  # iterations before the pipeline is as full as it will be


@dataclass(frozen=True)
class Prediction:
    """Iterations of one schedule; seconds, of the slowest rank.

    Attributes:
        iteration_s: one for each iteration that counts: several differ only where there is jitter.
        forward_s, backward_s, exposed_s: of the last iteration, on the rank that computes longest; exposed: waiting.
        waits: the parts of that.
        network_s: seconds of each collective that the schedule starts, for all buckets.
    """

    schedule: str
    fusion: str
    buckets: Cut
    iteration_s: tuple[float, ...]
    forward_s: float
    backward_s: float
    exposed_s: float
    bound_s: float
    waits: tuple[Wait, ...]
    network_s: dict[str, float]


def predict(
    model: Model,
    name: str,
    schedule: type[Schedule],
    fusion: str,
    prices: Callable[[Cut], Price],
    *,
    iterations: int = 1,
    loss_s: float = 0.0,
    update_s: float = 0.0,
    compute: Callable[[float], Any] = lambda seconds: seconds,
) -> Prediction:
    """Run a few iterations.

    Args:
        name: of the schedule.
        fusion: a policy of ``borders``.
        prices: gives the price of the collectives of these buckets.
        update_s: seconds of an update, for each element.
        compute: from the nominal seconds of a layer to those on each rank.

    Raises:
        ScheduleError: the schedule breaks a rule, or would wait for ever.
        ValueError: the fusion policy cannot be read.
    """
    buckets = cut(model.layout, borders(fusion, model.layout, model.itemsize), model.itemsize)
    if name not in SCHEDULES:  # ours are rehearsed by the tests
        rehearse(schedule, Rules(name, buckets, schedule.collectives), len(model.names))
    price, rules = prices(buckets), Rules(name, buckets, schedule.collectives)
    fabric = VirtualFabric(
        rules, price=price, loss_s=loss_s, update_s=lambda bucket: bucket.count * update_s, compute=compute
    )
    uses = [
        VirtualUse(fabric, number, *times)
        for number, times in enumerate(zip(model.forward_s, model.backward_s, strict=True))
    ]
    trainer = Trainer(uses, NoLoss(), VirtualMeter(fabric), schedule(fabric), rules)
    trainer.first = False  # its gradients have nothing to inspect
    times = [one(trainer) for _ in range(WARM + iterations)]
    last = times[-1]
    network_s = {each: sum(price(each, bucket) for bucket in buckets) for each in schedule.collectives}
    rank = int(np.argmax(last.forward_s + last.backward_s))  # all end at once: it keeps the others waiting
    forward_s, backward_s, exposed_s = (float(np.ravel(each)[rank % np.size(each)]) for each in last[1:])
    return Prediction(
        schedule=name,
        fusion=fusion,
        buckets=buckets,
        iteration_s=tuple(float(np.max(each.iteration_s)) for each in times[WARM:]),
        forward_s=forward_s,
        backward_s=backward_s,
        exposed_s=exposed_s,
        bound_s=schedule.bound(forward_s, backward_s, network_s),
        waits=tuple(fabric.waited),
        network_s=network_s,
    )


def one(trainer: Trainer) -> Times:
    """One iteration."""
    return trainer.iteration(np.zeros(0), np.zeros(0), 0)[1]
