"""Train a model on the virtual fabric, under one schedule, and say where the time of an iteration went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.simulate.contention import FREE, Contention
from dear_mpi.simulate.model import Model
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Price, VirtualFabric, VirtualMeter, VirtualUse, Wait
from dear_mpi.training.fusion import borders
from dear_mpi.training.line.bucket import Bucket, Cut, cut
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import SCHEDULES, Schedule
from dear_mpi.training.trainer import Times, Trainer

__all__ = ["Prediction", "predict"]

TIE = 1e-9  # ranks end together if they differ by less than this part of an iteration
WARM = 3  # iterations before the pipeline is as full as it will be


@dataclass(frozen=True)
class Exposed:
    """How long a rank has waited for a collective; the sum of the loss has no bucket."""

    collective: str
    bucket: Bucket | None
    seconds: float

    @classmethod
    def of(cls, wait: Wait, rank: int, share: float) -> Exposed:
        """A share of what a rank has waited."""
        return cls(wait.handle.collective, wait.handle.bucket, share * of_rank(wait.exposed_s, rank))


@dataclass(frozen=True)
class Prediction:
    """Iterations of one schedule; seconds, of the slowest rank.

    Attributes:
        iteration_s: one for each iteration that counts: several differ only where there is jitter.
        forward_s, backward_s, exposed_s: means over these, of one rank in each; exposed: waiting.
        waits: the parts of that; several for a collective if several iterations count.
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
    waits: tuple[Exposed, ...]
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
    contention: Contention = FREE,
    compute: Callable[[float], Any] = lambda seconds: seconds,
) -> Prediction:
    """Run a few iterations.

    Args:
        name: of the schedule.
        fusion: a policy of ``borders``.
        prices: gives the price of the collectives of these buckets.
        contention: between messages and updates.
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
        rules,
        price=price,
        loss_s=loss_s,
        update_s=lambda bucket: bucket.count * model.update_s,
        stall=contention.stall,
        stretch=contention.stretch,
        compute=compute,
    )
    uses = [
        VirtualUse(fabric, number, *times)
        for number, times in enumerate(zip(model.forward_s, model.backward_s, strict=True))
    ]
    meter = VirtualMeter(fabric, model.rest_s)
    trainer = Trainer(uses, NoLoss(), meter, schedule(fabric), rules, accumulate=model.parts)
    trainer.first = False  # its gradients have nothing to inspect
    for _ in range(WARM):
        one(trainer)
    counted, waits = [], list[Exposed]()
    for _ in range(iterations):
        times = one(trainer)
        rank = slowest(times)
        counted.append([of_rank(each, rank) for each in times])
        waits += [Exposed.of(wait, rank, 1 / iterations) for wait in fabric.waited]
    iteration_s, *parts_s = zip(*counted, strict=True)
    forward_s, backward_s, exposed_s = map(fmean, parts_s)
    network_s = {each: sum(price(each, bucket) for bucket in buckets) for each in schedule.collectives}
    return Prediction(
        schedule=name,
        fusion=fusion,
        buckets=buckets,
        iteration_s=iteration_s,
        forward_s=forward_s,
        backward_s=backward_s,
        exposed_s=exposed_s,
        bound_s=schedule.bound(forward_s, backward_s, network_s),
        waits=tuple(wait for wait in waits if wait.seconds),
        network_s=network_s,
    )


def one(trainer: Trainer) -> Times:
    """One iteration."""
    return trainer.iteration(np.zeros(0), np.zeros(0), 0)[1]


def slowest(times: Times) -> int:
    """The rank whose iteration takes longest; of several, the one that computes longest."""
    whole_s, forward_s, backward_s, _ = np.broadcast_arrays(*map(np.atleast_1d, times))
    last = whole_s >= (1 - TIE) * whole_s.max()
    return int(np.argmax(np.where(last, forward_s + backward_s, -1.0)))


def of_rank(seconds: Any, rank: int) -> float:
    """That of one rank, where there is one for all or one for each."""
    return float(np.ravel(seconds)[rank % np.size(seconds)])
