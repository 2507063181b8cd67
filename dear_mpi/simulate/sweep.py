"""Simulate every model, number of ranks, algorithm, fusion and schedule: the rows of ``--json``."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dear_mpi.collectives.algorithms.registry import check_whole
from dear_mpi.collectives.plans.call import check_segment
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.reporting.units import grouped
from dear_mpi.simulate.model import model_of
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices import Prices
from dear_mpi.simulate.scenario import Scenario
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.options import Wire, check_choice, check_own
from dear_mpi.training.schedules import BASELINE, SCHEDULES, Schedule
from dear_mpi.training.virtual_trainer import Prediction

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
    for name, kind in kinds.items():
        if kind.own_route() is not None:
            check_own(settings, name)
    for route, names in grouped(kinds, lambda name: settings.route_of(kinds[name])).items():
        check_choice(settings, route, {name: kinds[name] for name in names}, settings.chosen_optimizer)
    collectives = dict.fromkeys(each for kind in kinds.values() for each in kind.collectives)
    machines = {ranks: read_network(settings.network, ranks) for ranks in settings.ranks}
    found: dict[tuple[Any, ...], Scenario] = {}
    for name, ranks, algorithm in product(settings.models, settings.ranks, settings.algorithms):
        model, network = model_of(settings, name, ranks), machines[ranks].network
        settings.chosen_route.check_shapes(model.layout.shapes)
        itemsize = model.layout.itemsize
        segment_bytes = settings.segment_bytes or default_segment(network.hosts or range(ranks))
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
