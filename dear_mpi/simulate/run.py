"""Train a model on the virtual fabric, under one schedule, and say where the time of an iteration went."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.kernels.slab import round_up
from dear_mpi.simulate.contention import Contention
from dear_mpi.simulate.model import Model
from dear_mpi.simulate.tally import Breakdown, Tally
from dear_mpi.training.costs.wire_cost import whole_cost
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Price, of_rank
from dear_mpi.training.fabric.virtual_use import Noise, steady
from dear_mpi.training.fusion.by_time import PassTimes, by_time, is_by_time
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import KEPT, Log
from dear_mpi.training.log.spans import Rank, Run
from dear_mpi.training.log.timeline import rank_of
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.routes.find import FULL, priced
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import SCHEDULES, Schedule, own_fusion
from dear_mpi.training.virtual_trainer import Costs, VirtualTrainer

MOST_RANKS = 64  # whose spans are kept
REHEARSED_PARTS = 2  # of a batch that is rehearsed: all but the last are alike


@dataclass(frozen=True, kw_only=True)
class Prediction(Breakdown):
    """Iterations of one schedule, in seconds.

    Attributes:
        bound_s: the least that the schedule allows, for layers and collectives alone.
        network_s: of each collective that the schedule starts, for all buckets.
        run: what the ranks did in the last iterations, if it was kept.
    """

    schedule: str
    fusion: str
    buckets: Cut
    bound_s: float
    network_s: dict[str, float]
    run: Run | None = None


def predict(
    model: Model,
    name: str,
    schedule: type[Schedule],
    fusion: str,
    prices: Callable[[Cut], Price],
    *,
    ranks: int = 1,
    route: Route = FULL,
    judged: bool = False,
    iterations: int = 1,
    loss_s: float = 0.0,
    verdict_s: float = 0.0,
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1,
    contention: Contention | None = None,
    compute: Callable[[Any], Any] = lambda seconds: seconds,
    noise: Noise = steady,
    traced: bool = False,
) -> Prediction:
    """Run a few iterations.

    Args:
        name: of the schedule.
        fusion: a policy of ``borders``.
        prices: gives the price of the collectives of these buckets.
        portions: into how many portions a collective of a bucket can be broken.
        contention: between messages and updates, if they delay each other.
        compute: from nominal seconds to those on each rank.
        noise: how many times as long a layer takes, see ``VirtualUse``.
        ranks: their number.
        route: what buckets go through.
        judged: whether all gradients are looked at before any of them is used.
        traced: whether what ranks do in the last iterations is to be kept.

    Raises:
        ScheduleError: the schedule breaks a rule (``check_schedule`` sees that before, and whether it ends).
        ValueError: the fusion policy cannot be read, or a figure is not finite.
    """
    buckets = buckets_of(model, schedule, route, fusion, prices)
    price = prices(buckets)
    costs = Costs(
        forward_s=model.forward_s,
        backward_s=model.backward_s,
        price=price,
        parts=model.parts,
        loss_s=loss_s,
        verdict_s=verdict_s,
        update_s=model.update_s,
        rest_s=model.rest_s,
        ranks=ranks,
        contention=contention,
        portions=portions,
    )
    rules, kept = Rules(name, buckets, schedule, route=route, judged=judged), KEPT if traced else 1
    trainer = VirtualTrainer(schedule, rules, costs, compute=compute, noise=noise, kept=kept)
    trainer.warm_up()
    tally = Tally(trainer.virtual)
    for _ in range(round_up(iterations, route.period)):
        trainer.one()
        tally.add()
    mean = tally.breakdown()
    sent = priced(route, price)
    network_s = {each: sum(sent(each, bucket) for bucket in buckets) for each in schedule.collectives}
    found = Prediction(
        **vars(mean),
        schedule=name,
        fusion=fusion,
        buckets=buckets,
        bound_s=float(schedule.least(mean.forward_s, mean.backward_s, network_s, model.parts)),
        network_s=network_s,
        run=run_of(trainer.virtual.log, name, model.names, ranks) if traced else None,
    )
    check_finite(f"the prediction of schedule {name!r}, fusion {fusion!r}", vars(found))
    return found


def run_of(log: Log, name: str, layers: Sequence[str], ranks: int) -> Run:
    """What so many ranks did in the last iterations: as one where they are alike."""
    clocks = np.size(log.last.end)
    names = [f"rank {rank}" for rank in range(min(clocks, MOST_RANKS))]
    if clocks == 1 < ranks:
        names = [f"each of {ranks} ranks"]

    def traced(rank: int) -> Rank:
        return rank_of(log, names[rank], layers, lambda lane, mark: of_rank(mark, rank), kept=KEPT)

    return Run(name, tuple(map(traced, range(len(names)))), ranks)


def check_schedule(
    model: Model,
    name: str,
    schedule: type[Schedule],
    fusion: str,
    prices: Callable[[Cut], Price],
    *,
    route: Route,
    judged: bool,
) -> None:
    """Let a schedule rehearse with the buckets of a policy, unless the tests have done it.

    Raises:
        ScheduleError: it breaks a rule, or would wait for ever.
        ValueError: the fusion policy cannot be read.
    """
    if name not in SCHEDULES or judged or route.updates_under_way:
        rules = Rules(name, buckets_of(model, schedule, route, fusion, prices), schedule, route=route, judged=judged)
        rehearse(schedule, rules, len(model.names), accumulate=min(model.parts, REHEARSED_PARTS))


def buckets_of(
    model: Model, schedule: type[Schedule], route: Route, fusion: str, prices: Callable[[Cut], Price]
) -> Cut:
    """The buckets of a policy; ``own`` is the schedule's, and a policy by time knows what is simulated.

    Raises:
        ValueError: the policy cannot be read.
    """
    layout, policy = model.layout, own_fusion(fusion, schedule)
    if is_by_time(policy):
        cost = whole_cost(schedule.collectives, route, layout, prices)
        policy = by_time(policy, layout, PassTimes(model.forward_s, model.backward_s), cost)
    return fused(policy, layout)


def check_finite(what: str, figures: Mapping[str, object]) -> None:
    """See that all figures are finite.

    Raises:
        ValueError: one is not.
    """
    numbers = {name: value for name, value in figures.items() if isinstance(value, float)}
    wrong = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"{what} has no end: {', '.join(wrong)}; some number that was given is too large or too small")
