"""What would help: the fastest row with one thing changed, simulated once more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dear_mpi.simulate.scenario import Scenario
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.tally import TIE
from dear_mpi.training.schedules import SCHEDULES, Schedule, find_schedules

Change = Callable[[], float]  # seconds of an iteration with it
GAIN = 0.995  # what is not worth half a percent is not named
FUSIONS = ("none", "cut:1MB", "cut:4MB", "10MB", "25MB", "100MB")


def fastest(found: Sequence[Simulated]) -> list[Simulated]:
    """The fastest row of each model and number of ranks, the first of equal ones; what waits longest comes first."""
    best: dict[tuple[str, int], Simulated] = {}
    for each in found:
        case, seconds = (each.row["model"], each.row["ranks"]), each.row["iteration_s"]
        if case not in best or seconds < (1 - TIE) * best[case].row["iteration_s"]:
            best[case] = each
    return sorted(best.values(), key=lambda each: -each.row["exposed_comm_s"])


def changes(simulated: Simulated) -> dict[str, Change]:
    """What can be changed, by its name."""
    scenario, prediction = simulated.scenario, simulated.prediction
    name, fusion = prediction.schedule, prediction.fusion
    schedule = find_schedules([name])[name]

    def rewired(**factors: float) -> Change:
        return lambda: seconds_of(scenario.rewired(**factors), name, schedule, fusion)

    def under(other: str, kind: type[Schedule], policy: str) -> Change:
        return lambda: seconds_of(scenario, other, kind, policy)

    tried = {"twice the bandwidth": rewired(beta=0.5), "half the latency": rewired(alpha=0.5)}
    if any(link.o for link in (scenario.machine.network, scenario.machine.network.between) if link):
        tried["half the processor's time of a message"] = rewired(o=0.5)
    tried |= {f"fusion {policy}": under(name, schedule, policy) for policy in FUSIONS if policy != fusion}
    return tried | {f"schedule {each}": under(each, SCHEDULES[each], fusion) for each in SCHEDULES if each != name}


def remedies(simulated: Simulated, progress: Callable[[str], object] = lambda note: None) -> list[tuple[str, float]]:
    """Changes with which an iteration takes less, and its seconds then; the best first.

    ``progress`` is called after each change.
    """
    found = []
    for name, seconds in changes(simulated).items():
        found.append((name, seconds()))
        progress(name)
    better = [each for each in found if each[1] < GAIN * simulated.prediction.iteration_s]
    return sorted(better, key=lambda each: each[1])


def seconds_of(scenario: Scenario, name: str, schedule: type[Schedule], fusion: str) -> float:
    """What an iteration would take; infinity where the algorithm does not serve the schedule, or has too much to do."""
    try:
        scenario.check(name, schedule, fusion)
        return scenario.predict(name, schedule, fusion).iteration_s
    except ValueError:
        return math.inf
