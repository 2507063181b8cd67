"""Report possible gains: from the bounds of our schedules, in a sentence, and from changes of the fastest row."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.scenario import Scenario
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.training.schedules import BASELINE, SCHEDULES, Schedule, find_schedules
from dear_mpi.training.virtual_trainer import ALL_REACHED, REACHED, TIE, UNFAIR

Change = tuple[Scenario, str, type[Schedule], str]  # a scenario, with its schedule and fusion
GAIN = 0.995  # gains below half a percent are not named
FUSIONS = ("none", "cut:1MB", "cut:4MB", "10MB", "25MB", "100MB")
LEAST_GAIN = 5e-4  # less prints as 0.0 %


def fastest(found: Sequence[Simulated]) -> list[Simulated]:
    """Return the fastest row (the first of equal ones) of each model and number of ranks, longest wait first."""
    best: dict[tuple[str, int], Simulated] = {}
    for each in found:
        case, seconds = (each.row["model"], each.row["ranks"]), each.row["iteration_s"]
        if case not in best or seconds < (1 - TIE) * best[case].row["iteration_s"]:
            best[case] = each
    return sorted(best.values(), key=lambda each: -each.row["exposed_comm_s"])


def verdicts(found: Sequence[Simulated]) -> list[str]:
    """Describe each model and number of ranks; speed-ups are over the fastest of its baseline rows."""
    cases = defaultdict[tuple[str, int], list[Simulated]](list)
    for each in found:
        cases[each.row["model"], each.row["ranks"]].append(each)
    return [verdict(rows) for rows in cases.values()]


def case_text(simulated: Simulated) -> str:
    row = simulated.row
    return f"{row['model'].removeprefix('synthetic:')}, {plural(row['ranks'], 'rank')}"


def verdict(rows: Sequence[Simulated]) -> str:
    """Describe a model on one number of ranks: its time, our schedules' possible gain, and its fastest row."""
    base = min((each.base for each in rows), key=lambda base: base.iteration_s)
    (best,) = fastest(rows)
    row, limit_s, reduced_s = best.row, min(map(least_s, rows)), sum(base.network_s.values())
    takes = f"all-reduce takes {ms(reduced_s)} ms, forward {ms(base.forward_s)}, backward {ms(base.backward_s)}"
    where = case_text(best)
    alike = all(each.prediction.buckets == base.buckets for each in rows)
    over = f"{BASELINE} with these buckets" if alike else BASELINE
    most, gained = (gain(base.iteration_s, seconds) for seconds in (limit_s, row["iteration_s"]))
    if most < LEAST_GAIN:
        return f"{where}: {takes}: none of our schedules is faster than {over}."
    if gained < LEAST_GAIN:
        limit = f"by their bounds our schedules could gain at most {100 * most:.1f} %"
        return f"{where}: {takes}: here no row is faster than {over}; {limit}."
    said = f"{where}: {takes}: none of our schedules gains more than {100 * most:.1f} % over {over}"
    names = f"{row['schedule']}, fusion {row['fusion']}, {row['algorithm']}{best.wire_text}"
    return f"{said}; the fastest row ({names}) gains {100 * gained:.1f} %."


def slow_baselines(found: Sequence[Simulated]) -> list[str]:
    """Warn about each model, number of ranks and algorithm whose baseline has clearly better buckets than the chosen
    ones.

    Speed-ups over a peer with badly chosen buckets are too large.
    """
    cases = defaultdict[tuple[object, ...], list[Simulated]](list)
    for each in found:
        if each.row["schedule"] != BASELINE:
            cases[tuple(each.row[key] for key in ("model", "ranks", "algorithm"))].append(each)
    return list(filter(None, map(slow_baseline, cases.values())))


def slow_baseline(rows: Sequence[Simulated]) -> str:
    """Return the warning; "" if no row's baseline takes over 2 % longer than with the best tried buckets."""
    scenario, kind = rows[0].scenario, SCHEDULES[BASELINE]
    asked = {each.row["fusion"]: each.base.iteration_s for each in rows}
    tried = asked | {each: seconds_of(scenario, BASELINE, kind, each) for each in FUSIONS if each not in asked}
    worst, best = max(asked, key=asked.__getitem__), min(tried, key=tried.__getitem__)
    if asked[worst] <= (1 + UNFAIR) * tried[best]:
        return ""
    return (
        f"warning: {case_text(rows[0])}, {rows[0].row['algorithm']}: {BASELINE} takes {ms(asked[worst])} ms with "
        f"fusion {worst}, {ms(tried[best])} ms with {best}: with the former, speed-ups are "
        f"{gain(asked[worst], tried[best]):.1%} too high."
    )


def at_bound(found: Sequence[Simulated]) -> str:
    """Return a sentence if all rows take as long as their bounds, updates and the rest."""
    for each in found:
        now = each.prediction
        if now.iteration_s > REACHED * (now.bound_s + now.update_s + now.rest_s):
            return ""
    return ALL_REACHED


def least_s(simulated: Simulated) -> float:
    """Return the least time of an iteration with these buckets, under the row's schedule or our schedules.

    It is the row's time, or the least bound.
    """
    scenario, found = simulated.scenario, simulated.prediction
    bounds = (
        scenario.bound_s(schedule, found)
        for schedule in SCHEDULES.values()
        if all(serves(scenario.algorithm, each) for each in schedule.collectives)
    )
    own_s = found.forward_s + found.backward_s + found.update_s + found.rest_s
    return max(own_s, min(found.bound_s, *bounds))


def gain(base_s: float, seconds: float) -> float:
    """Return the relative speed gain, as a part of the time."""
    return base_s / seconds - 1 if seconds else 0.0


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def changes(simulated: Simulated) -> dict[str, Change]:
    """Return possible changes by name."""
    scenario, name, fusion = simulated.scenario, simulated.row["schedule"], simulated.row["fusion"]
    network, schedule = scenario.machine.network, find_schedules([name])[name]
    costs = {"twice the bandwidth": "beta", "half the latency": "alpha"}
    if any(link.o for link in (network, network.between) if link):
        costs["half the processor's time of a message"] = "o"
    found = {said: (scenario.rewired(**{cost: 0.5}), name, schedule, fusion) for said, cost in costs.items()}
    found |= {f"fusion {policy}": (scenario, name, schedule, policy) for policy in FUSIONS if policy != fusion}
    others = {each: kind for each, kind in SCHEDULES.items() if each != name}
    return found | {f"schedule {each}": (scenario, each, kind, fusion) for each, kind in others.items()}


def remedies(simulated: Simulated, progress: Callable[[str], object] = lambda note: None) -> list[tuple[str, float]]:
    """Return the changes that shorten an iteration and its seconds then, best first.

    ``progress`` is called after each change.
    """
    found = []
    for name, change in changes(simulated).items():
        found.append((name, seconds_of(*change)))
        progress(name)
    better = [each for each in found if each[1] < GAIN * simulated.prediction.iteration_s]
    return sorted(better, key=lambda each: each[1])


def seconds_of(scenario: Scenario, name: str, schedule: type[Schedule], fusion: str) -> float:
    """Return the seconds of an iteration; infinity if the algorithm cannot serve the schedule or needs too much
    work."""
    try:
        scenario.check(name, schedule, fusion)
        return scenario.predict(name, schedule, fusion).iteration_s
    except ValueError:
        return math.inf
