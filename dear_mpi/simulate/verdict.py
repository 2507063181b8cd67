"""What a schedule can gain at all, in a sentence: from the passes, the all-reduce, and the bounds of our schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.remedies import fastest
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.training.schedules import BASELINE, SCHEDULES

LEAST_GAIN = 5e-4  # less is 0.0 % in a sentence


def verdicts(found: Sequence[Simulated]) -> list[str]:
    """A sentence for each model and number of ranks; speed-ups are over the fastest of its rows under the baseline."""
    cases = defaultdict[tuple[str, int], list[Simulated]](list)
    for each in found:
        cases[each.row["model"], each.row["ranks"]].append(each)
    return [verdict(rows) for rows in cases.values()]


def verdict(rows: Sequence[Simulated]) -> str:
    """What one model takes on one number of ranks, what our schedules could gain, and what the fastest row does."""
    base = min((each.base for each in rows), key=lambda base: base.iteration_s)
    (best,) = fastest(rows)
    row, limit_s, reduced_s = best.row, min(map(least_s, rows)), sum(base.network_s.values())
    takes = f"all-reduce takes {ms(reduced_s)} ms, forward {ms(base.forward_s)}, backward {ms(base.backward_s)}"
    where = f"{row['model'].removeprefix('synthetic:')}, {plural(row['ranks'], 'rank')}"
    alike = all(each.prediction.buckets == base.buckets for each in rows)
    over = f"{BASELINE} with these buckets" if alike else BASELINE
    most, gained = (gain(base.iteration_s, seconds) for seconds in (limit_s, row["iteration_s"]))
    if most < LEAST_GAIN:
        return f"{where}: {takes}: none of our schedules is faster than {over}."
    said = f"{where}: {takes}: none of our schedules gains more than {100 * most:.1f} % over {over}"
    names = f"{row['schedule']}, fusion {row['fusion']}, {row['algorithm']}"
    return f"{said}; the fastest row ({names}) gains {100 * gained:.1f} %." if gained >= LEAST_GAIN else f"{said}."


def least_s(simulated: Simulated) -> float:
    """The least time of an iteration with these buckets under the row's schedule or one of ours: its own work, or the
    least bound."""
    scenario, found = simulated.scenario, simulated.prediction
    passes = found.forward_s, found.backward_s
    bounds = (
        schedule.least(*passes, scenario.network_s(schedule, found.buckets), scenario.model.parts)
        for schedule in SCHEDULES.values()
        if all(serves(scenario.algorithm, each) for each in schedule.collectives)
    )
    return max(sum(passes) + found.update_s + found.rest_s, min(found.bound_s, *bounds))


def gain(base_s: float, seconds: float) -> float:
    """How much faster that is, as a part of the time."""
    return base_s / seconds - 1 if seconds else 0.0


def ms(seconds: float) -> str:
    """Milliseconds in a sentence."""
    return f"{seconds * 1e3:.1f}"
