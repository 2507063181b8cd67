"""A trainer on the virtual fabric, and the one predictor: for rehearsals, ``compare``, ``simulate`` and tuning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dear_mpi.kernels.slab import round_up
from dear_mpi.models.synthetic import NoLoss
from dear_mpi.training.fabric.costs import Costs, Price, alike, steady
from dear_mpi.training.fabric.foresight import Nominal
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import VirtualFabric
from dear_mpi.training.fabric.virtual_use import VirtualMeter, VirtualUse
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.log.log import KEPT, Times
from dear_mpi.training.prediction import Prediction, Tally
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Trainer

WARM = 3  # iterations before the pipeline is as full as it will be


class VirtualTrainer(Trainer):
    """Runs iterations that have no arrays.

    Args:
        kind: of the schedule.
        rules: its book, with the buckets and the route.
        kept: see ``VirtualFabric``.
    """

    def __init__(self, kind: type[Schedule], rules: Rules, costs: Costs, *, kept: int = 1) -> None:
        fabric = VirtualFabric(rules, costs, kept=kept)
        uses = [VirtualUse(fabric, number) for number in range(len(costs.forward_s))]
        super().__init__(uses, NoLoss(), VirtualMeter(fabric), kind(fabric), rules, accumulate=costs.parts)
        self.virtual = fabric
        self.first = False  # there are no gradients to inspect, and no flush after that

    def warm_up(self) -> None:
        """Fill the pipeline."""
        for _ in range(WARM):
            self.one()

    def mean_s(self) -> float:
        """Seconds of an iteration, when the pipeline is full; a mean over a round of the route."""
        self.warm_up()
        period = self.rules.route.period
        return sum(self.one().iteration_s for _ in range(period)) / period

    def one(self) -> Times:
        """An iteration."""
        return self.iteration(np.zeros(0), np.zeros(0), 0)[1]


def predict(
    kind: type[Schedule], rules: Rules, costs: Costs, *, iterations: int = 1, traced: bool = False
) -> Prediction:
    """What an iteration takes when the pipeline is full.

    Args:
        kind: of the schedule.
        rules: a new book of it, with the buckets and the route.
        iterations: how many count, at least; whole rounds of the route do.
        traced: whether the log of the last iterations is to be kept.

    Raises:
        ScheduleError: the schedule breaks a rule (``rehearse`` sees that before, and whether it ends).
    """
    trainer = VirtualTrainer(kind, rules, costs, kept=KEPT if traced else 1)
    if kind.foresees:
        trainer.schedule.take(best_order(trainer.schedule, kind, rules, costs))
    trainer.warm_up()
    tally = Tally(trainer.virtual)
    for _ in range(round_up(iterations, rules.route.period)):
        trainer.one()
        tally.add()
    means, sent_s = tally.means(), network_s(kind, rules.route, rules.buckets, costs.price)
    return Prediction(
        schedule=rules.name,
        route=rules.route.name,
        buckets=rules.buckets,
        **means,
        bound_s=float(kind.least(means["forward_s"], means["backward_s"], sent_s, costs.parts)),
        network_s=sent_s,
        log=trainer.virtual.log if traced else None,
    )


def network_s(kind: type[Schedule], route: Route, buckets: Cut, price: Price) -> dict[str, float]:
    """Seconds of each collective that a schedule starts, for all buckets: what its bound needs."""
    sent = route.priced(price)
    return {each: sum(sent(each, bucket) for bucket in buckets) for each in kind.collectives}


def best_order(schedule: Schedule, kind: type[Schedule], rules: Rules, costs: Costs) -> Sequenced | None:
    """Of the orders of an iteration that a schedule proposes, the one that takes the least time where ranks are alike.

    Args:
        schedule: one of this kind, with a fabric that has the buckets.
    """
    price, costs = rules.route.priced(costs.price), replace(costs, compute=alike, noise=steady)
    nominal = Nominal(
        costs.forward_s,
        costs.backward_s,
        price,
        judged=rules.judged,
        portions=costs.portions,
        weights_s=costs.weights_s,
        exchange_s=costs.exchange_s,
    )
    orders = list(dict.fromkeys(tuple(order or ()) or None for order in schedule.orders(nominal)))

    def seconds(order: Sequenced | None) -> float:
        rules.iteration += 1  # who watches this book sees that a try is over
        trainer = VirtualTrainer(kind, rules.another(), costs)
        trainer.schedule.take(order)
        return trainer.mean_s()

    return orders[0] if len(orders) == 1 else min(orders, key=seconds)
