"""Run a trainer on the virtual fabric: the dry run of a schedule, and the only predictor.

A prediction is the mean length of the counted iterations, between the last ranks' begin and end, and one rank's
activity: ranks of different speeds may be last in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE
from dear_mpi.collectives.program import user_file
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.slab import round_up
from dear_mpi.models.layer import NoLoss
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events import KEPT, Event, Log, Times, fold
from dear_mpi.training.fabric.fabric import LOSS, Sequenced
from dear_mpi.training.fabric.rules import Rules, ScheduleError
from dear_mpi.training.fabric.virtual import Costs, Price, VirtualFabric, last, of_rank, steady, unscaled
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.schedules.schedule import Nominal
from dear_mpi.training.trainer import Trainer

TIE = 1e-9  # relative difference below which times are equal
UNFAIR = 0.02  # a baseline's buckets may cost this share of its best time
FLUSHES = (0, 0, 2, 0, 1)  # in a dry run, after each iteration
WARM = 3  # iterations until the pipeline is full
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Hold mean seconds per counted iteration; from ``forward_s`` to ``rest_s`` of one rank."""

    schedule: str
    route: str
    buckets: Cut
    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float  # waiting for communication
    update_s: float  # of the optimiser
    rest_s: float  # with the gap between the rank's time and the job's
    bound_s: float
    network_s: Mapping[str, float]  # of each of the schedule's collectives, for all buckets
    log: Log | None = None  # of the last iterations, if kept


def representative(own_s: Any, length_s: float, compute_s: Any) -> int:
    """Return the rank with the longest own time up to ``length_s``; of several, the one that computes most.

    It exists: the rank that is last at the beginning ends no later than the one that is last at the end.
    """
    if isinstance(own_s, float):  # one clock for all ranks
        return 0
    own_s, compute_s = np.broadcast_arrays(np.atleast_1d(own_s), np.atleast_1d(compute_s))
    lacks_s, tie_s = length_s - own_s, TIE * length_s
    least_s = lacks_s[lacks_s >= -tie_s].min()
    near = (lacks_s >= -tie_s) & (lacks_s <= least_s + tie_s)
    return int(np.argmax(np.where(near, compute_s, -1.0)))


@dataclass(eq=False)
class VirtualCall:
    """Simulate a layer call, which only takes time."""

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
    """Sum a loss of zero, which may take time."""

    trouble = False

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric = fabric

    def start(self, losses: Sequence[Array | float], targets: Array, total: int, *, trouble: bool) -> None:
        self.fabric.spend(self.fabric.costs.rest_s)
        self.handle = self.fabric.launch_act(LOSS, self.fabric.costs.loss_s)

    def complaint(self) -> None: ...

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        return 0.0


class VirtualTrainer(Trainer):
    """Run iterations without arrays."""

    def __init__(self, kind: type[Schedule], rules: Rules, costs: Costs, *, kept: int = 1) -> None:
        fabric = VirtualFabric(rules, costs, kept=kept)
        calls = [VirtualCall(fabric, number) for number in range(len(costs.forward_s))]
        super().__init__(calls, NoLoss(), VirtualMeter(fabric), kind(fabric), rules, accumulate=costs.parts)
        self.first = False  # no gradients to inspect, and no flush after that

    def warm_up(self) -> None:
        for _ in range(WARM):
            self.one()

    def mean_s(self) -> float:
        """Return the mean seconds of a sync interval's iterations, with a full pipeline."""
        self.warm_up()
        period = self.rules.route.period
        return sum(self.one().iteration_s for _ in range(period)) / period

    def one(self) -> Times:
        return self.iteration(np.zeros(0), np.zeros(0), 0)[1]


def rehearse(
    schedule: type[Schedule],
    rules: Rules,
    calls: int,
    *,
    split: Iterable[int] = (),
    accumulate: int = 1,
    order: Sequenced | None = None,
) -> None:
    """Do a dry run: a few iterations and flushes in zero time, then the bound of the schedule.

    Raises ScheduleError if the schedule breaks a rule, would wait forever, never ends, or fails.

    Args:
        rules: new, with the buckets.
        calls: layer calls in a forward pass; those in ``split`` have a two-part backward pass.
        accumulate: forward passes in an iteration.
        order: decided from layer times, if any.
    """
    nothing = [0.0] * calls
    costs = Costs(forward_s=nothing, backward_s=nothing, weights_s=dict.fromkeys(split, 0.0), parts=accumulate)

    def run() -> None:
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

    in_time(rules, run)


def in_time(rules: Rules, call: Callable[[], T]) -> T:
    """Return the result of a schedule's code, which may take any time while it proceeds from hook to hook.

    Raises ScheduleError, which names the hook.
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
    """Predict the iteration of a schedule with a full pipeline. Raises ScheduleError.

    Args:
        rules: new, with the buckets and the route.
        iterations: the least number that count, in whole sync intervals.
        traced: whether to keep the log.
    """
    trainer = VirtualTrainer(kind, rules, costs, kept=KEPT if traced else 1)
    if kind.foresees:
        trainer.schedule.take(best_order(trainer.schedule, rules, costs))
    trainer.warm_up()
    fabric, count = trainer.fabric, round_up(iterations, rules.route.period)

    def events() -> Iterator[Event]:  # one iteration's at a time: each may have a time for every rank
        for _ in range(count):
            trainer.one()
            yield from fabric.log.last.within

    begin_s = fabric.now()
    found_s = fold(events(), fabric.seconds)
    own_s, length_s, share = fabric.now() - begin_s, last(fabric.now()) - last(begin_s), 1 / count
    taken_s = dict.fromkeys(("forward", "backward", "update", "wait"), 0.0) | found_s
    rank = representative(own_s, length_s, taken_s["forward"] + taken_s["backward"])
    mean_s = {kind: share * of_rank(seconds, rank) for kind, seconds in taken_s.items()}
    sent_s = network_s(kind, rules.route, rules.buckets, costs.price)
    return Prediction(
        schedule=rules.name,
        route=rules.route.name,
        buckets=rules.buckets,
        iteration_s=share * length_s,
        forward_s=mean_s["forward"],
        backward_s=mean_s["backward"],
        exposed_s=mean_s["wait"],
        update_s=mean_s["update"],
        rest_s=max(0.0, share * length_s - sum(mean_s.values())),  # not -1e-17
        bound_s=float(kind.least(mean_s["forward"], mean_s["backward"], sent_s, costs.parts)),
        network_s=sent_s,
        log=fabric.log if traced else None,
    )


def network_s(kind: type[Schedule], route: Route, buckets: Cut, price: Price) -> dict[str, float]:
    """Return the seconds of each of the schedule's collectives, for all buckets, as its bound needs."""
    sent = route.priced(price)
    return {each: sum(sent(each, bucket) for bucket in buckets) for each in kind.collectives}


def best_order(schedule: Schedule, rules: Rules, costs: Costs) -> Sequenced | None:
    """Return the fastest order that a schedule proposes, for ranks of equal speed."""
    costs = replace(costs, compute=unscaled, noise=steady)
    fabric = VirtualFabric(rules.another(), costs)

    def price(collective: str, bucket: Bucket) -> float:
        jobs = rules.route.jobs[collective][: 1 if rules.judged else None]  # the return comes after the check
        return sum(stage.share * fabric.act(stage, bucket, WHOLE, back=False) for job in jobs for stage in job)

    beside = {name: getattr(costs, name) for name in ("portions", "weights_s", "exchange_s", "loss_s")}
    nominal = Nominal(costs.forward_s, costs.backward_s, price, judged=rules.judged, **beside)
    orders = list(dict.fromkeys(tuple(order or ()) or None for order in schedule.orders(nominal)))

    def seconds(order: Sequenced | None) -> float:
        rules.iteration += 1  # watchers of this book see that a try is over
        trainer = VirtualTrainer(type(schedule), rules.another(), costs)
        trainer.schedule.take(order)
        return trainer.mean_s()

    return orders[0] if len(orders) == 1 else min(orders, key=seconds)
