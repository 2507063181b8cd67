"""A trainer on the virtual fabric, for rehearsals and predictions.

A schedule rehearses there before it runs on the live fabric, and is refused if it is wrong. There is one predictor: for
``compare``, ``simulate`` and tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TypeVar

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE
from dear_mpi.collectives.program import user_file
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import round_up
from dear_mpi.models.synthetic import NoLoss
from dear_mpi.training.fabric.costs import Costs, Price, alike, steady
from dear_mpi.training.fabric.foresight import Nominal
from dear_mpi.training.fabric.order import LOSS, Sequenced
from dear_mpi.training.fabric.rules import Rules, ScheduleError
from dear_mpi.training.fabric.virtual import VirtualFabric
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import KEPT, Times
from dear_mpi.training.prediction import Prediction, Tally
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Trainer

T = TypeVar("T")
FLUSHES = (0, 0, 2, 0, 1)  # how often after each iteration: not at all, twice (the second has nothing to do), once
WARM = 3  # iterations before the pipeline is as full as it will be


@dataclass(eq=False)
class VirtualUse:
    """A use of a layer that only takes time."""

    fabric: VirtualFabric
    number: int
    complaints: Sequence[str] = ()
    passes: int = -1
    received: Array = field(init=False)

    @property
    def split(self) -> bool:
        return self.number in self.fabric.costs.weights_s

    @property
    def exchanging(self) -> bool:
        return self.number in self.fabric.costs.exchange_s

    def exchange(self, given: Array, *, back: bool) -> float:
        self.received = given
        return self.fabric.costs.exchange_s[self.number]

    def forward(self, x: Array, *, inspect: bool) -> Array:
        self.passes += 1
        self.spend(self.fabric.costs.forward_s[self.number], 2 * self.number)
        return x

    def backward(self, dy: Array, *, late: bool = False) -> Array:
        costs = self.fabric.costs
        left_s = costs.weights_s[self.number] if late else 0.0
        self.spend(costs.backward_s[self.number] - left_s, 2 * self.number + 1)
        return dy

    def backward_weights(self) -> None:
        self.spend(self.fabric.costs.weights_s[self.number], 2 * self.number + 1)

    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...
    def check_written(self) -> None: ...
    def after_backward(self, *, last: bool) -> None: ...

    def spend(self, seconds: float, place: int) -> None:
        self.fabric.spend(self.fabric.costs.noise(self.passes, place) * seconds)


class VirtualMeter:
    """Sums a loss that is zero, but may take its time, at its place in the order."""

    trouble = False

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric = fabric

    def start(self, loss: Array | float, targets: Array, total: int, *, trouble: bool) -> None:
        self.fabric.spend(self.fabric.costs.rest_s)
        self.handle = self.fabric.launch_sum(LOSS, self.fabric.costs.loss_s)

    def complaint(self) -> None: ...

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        return 0.0


class VirtualTrainer(Trainer):
    """Runs iterations that have no arrays, of this kind of schedule; ``rules`` is its book, with buckets and route."""

    def __init__(self, kind: type[Schedule], rules: Rules, costs: Costs, *, kept: int = 1) -> None:
        fabric = VirtualFabric(rules, costs, kept=kept)
        uses = [VirtualUse(fabric, number) for number in range(len(costs.forward_s))]
        super().__init__(uses, NoLoss(), VirtualMeter(fabric), kind(fabric), rules, accumulate=costs.parts)
        self.virtual = fabric
        self.first = False  # there are no gradients to inspect, and no flush after that

    def warm_up(self) -> None:
        for _ in range(WARM):
            self.one()

    def mean_s(self) -> float:
        """Seconds of an iteration, when the pipeline is full; a mean over a round of the route."""
        self.warm_up()
        period = self.rules.route.period
        return sum(self.one().iteration_s for _ in range(period)) / period

    def one(self) -> Times:
        return self.iteration(np.zeros(0), np.zeros(0), 0)[1]


def rehearse(
    schedule: type[Schedule],
    rules: Rules,
    uses: int,
    *,
    split: Iterable[int] = (),
    accumulate: int = 1,
    order: Sequenced | None = None,
) -> None:
    """Run a few iterations, and flushes between them, where nothing takes time.

    Args:
        rules: a new book, with the buckets.
        uses: how many uses of layers a forward pass has.
        split: the uses whose backward pass has two halves.
        accumulate: how many forward passes an iteration has.
        order: what was decided from the times of layers, if anything was.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, never ends, or fails.
    """
    nothing, halves = [0.0] * uses, dict.fromkeys(split, 0.0)
    costs = Costs(forward_s=nothing, backward_s=nothing, weights_s=halves, parts=accumulate)
    in_time(rules, lambda: iterate(schedule, rules, costs, order))


def iterate(schedule: type[Schedule], rules: Rules, costs: Costs, order: Sequenced | None) -> None:
    """The iterations; then the schedule's bound."""
    trainer = VirtualTrainer(schedule, rules, costs)
    if order is not None:
        trainer.schedule.take(order)
    for flushes in FLUSHES:
        trainer.one()
        for _ in range(flushes):
            trainer.flush()
    rules.point = ("bound", ())
    bound = schedule.bound(1.0, 2.0, dict.fromkeys(schedule.collectives, 1.0))
    if not isinstance(bound, Real) or not 0 <= bound < math.inf:
        raise ValueError(f"it must return seconds, not {bound!r}")


def in_time(rules: Rules, call: Callable[[], T]) -> T:
    """What a call of a schedule's code returns, however long it takes, as long as it gets on from hook to hook.

    ScheduleError, which names the hook, if one takes too long or fails. What it may touch then is on a virtual fabric.
    """
    try:
        return user_file.in_time(call, lambda: (rules.iteration, rules.point))
    except (ScheduleError, KeyboardInterrupt):
        raise
    except user_file.Endless as error:
        rules.refuse(str(error))
    except BaseException as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error


def predict(
    kind: type[Schedule], rules: Rules, costs: Costs, *, iterations: int = 1, traced: bool = False
) -> Prediction:
    """What an iteration of a schedule takes when the pipeline is full.

    Args:
        rules: a new book of it, with the buckets and the route.
        iterations: how many count, at least; whole rounds of the route do.
        traced: whether the log of the last iterations is to be kept.

    Raises:
        ScheduleError: the schedule breaks a rule (``rehearse`` sees that before, and whether it ends).
    """
    trainer = VirtualTrainer(kind, rules, costs, kept=KEPT if traced else 1)
    if kind.foresees:
        trainer.schedule.take(best_order(trainer.schedule, rules, costs))
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


def best_order(schedule: Schedule, rules: Rules, costs: Costs) -> Sequenced | None:
    """Of the orders of an iteration that a schedule proposes, the one that takes the least time where ranks are alike.

    The fabric of the schedule has the buckets.
    """
    costs = replace(costs, compute=alike, noise=steady)
    fabric = VirtualFabric(rules.another(), costs)

    def price(collective: str, bucket: Bucket) -> float:
        jobs = rules.route.jobs[collective][: 1 if rules.judged else None]  # the way back comes after the verdict
        return sum(leg.share * fabric.act(leg, bucket, WHOLE, back=False) for job in jobs for leg in job)

    beside = {name: getattr(costs, name) for name in ("portions", "weights_s", "exchange_s", "loss_s")}
    nominal = Nominal(costs.forward_s, costs.backward_s, price, judged=rules.judged, **beside)
    orders = list(dict.fromkeys(tuple(order or ()) or None for order in schedule.orders(nominal)))

    def seconds(order: Sequenced | None) -> float:
        rules.iteration += 1  # who watches this book sees that a try is over
        trainer = VirtualTrainer(type(schedule), rules.another(), costs)
        trainer.schedule.take(order)
        return trainer.mean_s()

    return orders[0] if len(orders) == 1 else min(orders, key=seconds)
