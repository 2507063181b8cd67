"""Simulate every model, number of ranks, algorithm, fusion and schedule: the rows of ``--json``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from dear_mpi.collectives.algorithms.registry import check_whole
from dear_mpi.collectives.plans.call import check_segment
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.hosts import share_served
from dear_mpi.kernels.slab import round_up
from dear_mpi.models.synthetic import ALL_TO_ALL
from dear_mpi.reporting.units import grouped, parse_straggler
from dear_mpi.simulate.model import Model, compute_keys, model_of
from dear_mpi.simulate.network import Machine, read_network
from dear_mpi.simulate.prices import Prices
from dear_mpi.simulate.settings import MOST_PARTS, Settings
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.choice import check_choice, check_sent
from dear_mpi.training.fabric.fabric import portions_of
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.statistic import COUNT
from dear_mpi.training.fabric.virtual import Price, unscaled, whole_cost
from dear_mpi.training.fusion import PassTimes, borders, by_time, check_file, fused, is_by_time
from dear_mpi.training.options import Wire
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import Sent
from dear_mpi.training.schedules import BASELINE, SCHEDULES, Schedule, own_fusion
from dear_mpi.training.virtual_trainer import Prediction, network_s, predict, rehearse

REHEARSED_PARTS = 2  # all parts of a batch except the last are alike
LOSS_ALGORITHM = "recursive_doubling"  # bytes of the loss
VERDICT_BYTES = 8 * COUNT


@dataclass(frozen=True)
class Scenario:
    """Price a model on given ranks, network and algorithm, under any schedule and fusion."""

    settings: Settings
    algorithm: str
    model: Model
    machine: Machine
    prices: Prices

    def check(self, name: str, schedule: type[Schedule], fusion: str) -> None:
        """Check that a schedule can be simulated with this fusion, by a dry run unless our tests cover it.

        ScheduleError: it breaks a rule or would wait forever. ValueError: a wrong policy or choice.
        """
        policy, settings = own_fusion(fusion, schedule), self.settings
        route = settings.route_of(schedule)
        if route.period > MOST_PARTS:
            raise ValueError(f"schedule {name!r}: rounds must have at most {MOST_PARTS} iterations, not {route.period}")
        check_sent(settings, name, schedule, route, settings.types[0])
        check_file(policy)
        if not is_by_time(policy):  # time-based policies need prices
            borders(policy, self.model.layout)
        if name not in SCHEDULES or settings.judged or route.updates_under_way:
            parts = min(self.model.costs.parts, REHEARSED_PARTS)
            how: dict[str, Any] = {"split": self.model.costs.weights_s, "accumulate": parts}
            rehearse(schedule, self.rules(name, schedule, fusion), len(self.model.names), **how)

    def predict(self, name: str, schedule: type[Schedule], fusion: str, *, traced: bool = False) -> Prediction:
        rules, settings, ranks = self.rules(name, schedule, fusion), self.settings, self.prices.ranks
        slowness = np.array(parse_straggler(settings.straggler, ranks))
        costs = replace(
            self.model.costs,
            price=self.priced(schedule, rules.buckets),
            exchange_s=self.exchange_s(),
            loss_s=self.few_s(),
            verdict_s=self.few_s(VERDICT_BYTES) if settings.judged else 0.0,
            ranks=ranks,
            served=share_served(self.prices.hosts or range(ranks)),
            work=self.model.sharing(rules.buckets).work,
            portions=partial(self.portions, rules.route),
            compute=unscaled if settings.straggler is None else lambda seconds: seconds * slowness,
            noise=self.model.noise,
        )
        return predict(schedule, rules, costs, traced=traced)

    def rules(self, name: str, schedule: type[Schedule], fusion: str) -> Rules:
        route = self.settings.route_of(schedule)
        buckets = buckets_of(self.model, schedule, route, fusion, partial(self.priced, schedule))
        return Rules(name, buckets, schedule, route=route, judged=self.settings.judged)

    def bound_s(self, schedule: type[Schedule], found: Prediction) -> float:
        route = self.settings.route_of(schedule)
        sent_s = network_s(schedule, route, found.buckets, self.priced(schedule, found.buckets))
        return schedule.least(found.forward_s, found.backward_s, sent_s, self.model.costs.parts)

    def priced(self, schedule: type[Schedule], buckets: Cut) -> Price:
        """Price these buckets at once; portions on demand."""
        names, route = (*schedule.collectives, *schedule.extras), self.settings.route_of(schedule)
        longest = self.model.sharing(buckets).longest

        def size(stage: Sent, bucket: Bucket) -> int:
            return self.nbytes(route, stage, bucket, longest(bucket))

        for stage in dict.fromkeys(stage for name in names for stage in route.sent(name)):
            if not stage.few:
                sizes = [size(stage, bucket) for bucket in buckets]
                self.prices.seconds(stage.algorithm(self.algorithm), stage.name, sizes)

        @cache
        def price(stage: Sent, bucket: Bucket) -> float:
            if stage.few:
                return self.few_s()
            return self.prices.one_s(stage.algorithm(self.algorithm), stage.name, size(stage, bucket))

        return price

    def portions(self, route: Route, collective: str, bucket: Bucket) -> int:
        if (stage := route.divisible(collective)) is None:
            return 1
        return portions_of(self.nbytes(route, stage, bucket), self.prices.ranks, self.prices.segment_bytes)

    def nbytes(self, route: Route, stage: Sent, bucket: Bucket, longest: int | None = None) -> int:
        """Return a bucket's bytes in a collective, in equal shards, or in shards priced as the longest one."""
        wire, ranks = self.model.layout.itemsize, self.prices.ranks
        sizes: dict[str, Any] = {"wire": wire, "values": self.model.value_size, "shapes": bucket.shapes}
        return round_up(route.nbytes(stage.buffer, bucket.count, ranks=ranks, longest=longest, **sizes), ranks * wire)

    def exchange_s(self) -> dict[int, float]:
        grain = self.prices.ranks * self.prices.itemsize
        sizes = {use: round_up(nbytes, grain) for use, nbytes in self.model.exchange_bytes.items()}
        priced = {use: self.prices.one_s(*ALL_TO_ALL, nbytes) for use, nbytes in sizes.items()}
        return {**self.model.costs.exchange_s, **priced}

    def few_s(self, nbytes: int = 1) -> float:
        """Price an all-reduce of a few bytes, such as the sum of the loss."""
        size = round_up(nbytes, self.prices.ranks * self.model.layout.itemsize)
        return self.prices.one_s(LOSS_ALGORITHM, "all_reduce", size)

    def row(self, fusion: str, prediction: Prediction, base_s: float) -> dict[str, Any]:
        settings, model, seconds = self.settings, self.model, prediction.iteration_s
        return {
            "model": model.name,
            "params": model.params,
            "ranks": self.prices.ranks,
            "schedule": prediction.schedule,
            "algorithm": self.algorithm,
            "fusion": fusion,
            "buckets": len(prediction.buckets),
            "wire": settings.wire_name,
            "accumulate": model.costs.parts,
            "optimizer": settings.optimizer,
            "weights": model.owners.weights,
            "route": prediction.route,
            "clip": settings.clip,
            "loss_scale": settings.loss_scale,
            "segment_bytes": self.prices.segment_bytes,
            **self.machine.row(),
            **compute_keys(settings, model.costs),
            **{name: getattr(model.costs, name) for name in ("ranks_per_core", "code_factor", "start_s", "wake_s")},
            "straggler": settings.straggler,
            "iteration_s": seconds,
            "compute_s": prediction.forward_s + prediction.backward_s,
            "exposed_comm_s": prediction.exposed_s,
            **{name: getattr(prediction, name) for name in ("update_s", "rest_s", "bound_s")},
            "speedup_vs_wfbp": base_s / seconds if seconds else 1.0,
        }

    def rewired(self, **factors: float) -> Scenario:
        """Multiply network costs by factors."""

        def times(network: Network) -> Network:
            return replace(network, **{name: factor * getattr(network, name) for name, factor in factors.items()})

        network = times(self.machine.network)
        if network.between is not None:
            network = replace(network, between=times(network.between))
        return replace(self, prices=self.prices.on(network))


def buckets_of(
    model: Model, schedule: type[Schedule], route: Route, fusion: str, prices: Callable[[Cut], Price]
) -> Cut:
    """Return a policy's buckets; a time-based one gets the price of trial buckets from ``prices``."""
    layout, policy = model.layout, own_fusion(fusion, schedule)
    if is_by_time(policy):
        cost = whole_cost(schedule.collectives, route, layout, prices)
        policy = by_time(policy, layout, PassTimes(model.costs.forward_s, model.costs.backward_s), cost)
    return fused(policy, layout)


FUSIONS = ("none", "cut:1MB", "cut:4MB", "10MB", "25MB", "100MB")  # buckets tried in a search


@dataclass(frozen=True)
class Simulated:
    """A row and its inputs; ``base`` has the baseline schedule and the first wire format."""

    row: dict[str, Any]
    scenario: Scenario
    prediction: Prediction
    base: Prediction


def simulate(
    settings: Settings,
    progress: Callable[[str], object] = lambda note: None,
    *,
    traced: bool = False,
) -> list[Simulated]:
    """Predict an iteration of each case. ValueError; ScheduleError: a schedule breaks a rule.

    Args:
        progress: is called after each case.
        traced: whether predictions keep the log of the last iterations (``timeline_of`` in table.py).
    """
    first, baseline = settings.asked_wires[0], SCHEDULES[BASELINE]
    prices: dict[tuple[int, int], Prices] = {}  # by ranks and bytes of an element, for all models
    scenarios: dict[tuple[Any, ...], Scenario] = {}
    for wire in dict.fromkeys([first, *(wire for wire, _ in settings.pairs)]):
        scenarios |= scenarios_of(settings, wire, prices)
    bases: dict[tuple[Any, ...], Prediction] = {}
    found = []
    for *case, fusion, (wire, schedule) in settings.cases():
        scenario, key = scenarios[(wire, *case)], (*case, fusion)
        if key not in bases:
            bases[key] = scenarios[(first, *case)].predict(BASELINE, baseline, fusion, traced=traced)
        prediction = base = bases[key]
        if (wire, schedule) != (first, BASELINE):
            prediction = scenario.predict(schedule, settings.kinds[schedule], fusion, traced=traced)
        found.append(Simulated(scenario.row(fusion, prediction, base.iteration_s), scenario, prediction, base))
        progress(f"{case[0]}, {case[1]} ranks, {schedule}")
    return found


def scenarios_of(asked: Settings, wire: Wire, prices: dict[tuple[int, int], Prices]) -> dict[tuple[Any, ...], Scenario]:
    """Make a checked scenario by model, ranks and algorithm."""
    asked.check()
    settings = replace(asked, wire=wire)
    kinds = {name: asked.kinds[name] for other, name in asked.pairs if other == wire} | {BASELINE: SCHEDULES[BASELINE]}
    for route, names in grouped(kinds, lambda name: settings.route_of(kinds[name])).items():
        chosen = {name: kinds[name] for name in names}
        check_choice(settings, route, chosen, settings.chosen_optimizer, elastic=settings.elastic)
    collectives = dict.fromkeys(each for kind in kinds.values() for each in kind.collectives)
    machines = {ranks: read_network(settings.network, ranks) for ranks in settings.ranks}
    found: dict[tuple[Any, ...], Scenario] = {}
    for name, ranks, algorithm in product(settings.models, settings.ranks, settings.algorithms):
        model, network = model_of(settings, name, ranks), machines[ranks].network
        settings.chosen_route.check_shapes(model.layout.shapes)
        itemsize = model.layout.itemsize
        segment_bytes = (
            default_segment(network.hosts or range(ranks)) if settings.segment_bytes is None else settings.segment_bytes
        )
        check_segment(segment_bytes, itemsize)
        shared = prices.setdefault((ranks, itemsize), Prices(network, ranks, segment_bytes, itemsize))
        settings.chosen_route.check(shared.hosts or (0,) * ranks)
        check_whole(algorithm)
        shared.check_algorithm(algorithm, collectives)
        found[wire, name, ranks, algorithm] = scenario = Scenario(settings, algorithm, model, machines[ranks], shared)
        for fusion, (schedule, kind) in product(settings.fusions, kinds.items()):
            scenario.check(schedule, kind, fusion)
    return found


def seconds_of(scenario: Scenario, name: str, schedule: type[Schedule], fusion: str) -> float:
    """Return an iteration's seconds; infinity if the algorithm cannot serve the schedule."""
    try:
        scenario.check(name, schedule, fusion)
        return scenario.predict(name, schedule, fusion).iteration_s
    except ValueError:
        return math.inf
