"""What ``dear-mpi simulate`` shows: a table, and where the time of the slowest part goes, in words."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.reporting.terminal import console
from dear_mpi.simulate.pace import parse_jitter
from dear_mpi.simulate.sweep import Scenario, Simulated
from dear_mpi.training.schedules import SCHEDULES, Schedule, find_schedules

__all__ = ["exposed_parts", "heading", "show_simulation"]

MOST = 3  # parts of the exposed time that are named
GAIN = 0.995  # what is not worth half a percent is not named
FUSIONS = ("none", "cut:1MB", "cut:4MB", "10MB", "25MB", "100MB")
ORIGINS = {"given": "as given", "fitted": "fitted from measured rows", "published": "fitted to published throughputs"}
ORIGINS |= {"measured": "measured", "predicted": "predicted from FLOPs"}
ORIGINS["replayed"] = "as given; replayed by SimGrid"


def show_simulation(found: Sequence[Simulated]) -> None:
    """All rows; and of the one that waits longest, for what."""
    caption = "ms of an iteration on the slowest rank; exposed: waiting for communication; bound: least time possible"
    table = Table(title=heading(found[0]), caption=caption, box=SIMPLE_HEAD, padding=0)
    words, numbers = ("schedule", "fusion"), ("buckets", "iteration", "compute", "exposed", "bound", "/ wfbp")
    for head in ("model", "ranks", *words, *numbers):
        table.add_column(head, justify="left" if head in ("model", *words) else "right")
    for each in found:
        row = each.row
        times = (row["iteration_s"], row["compute_s"], row["exposed_comm_s"], row["bound_s"])
        table.add_row(
            row["model"].removeprefix("synthetic:"),
            *(str(row[name]) for name in ("ranks", "schedule", "fusion", "buckets")),
            *(f"{seconds * 1e3:.1f}" for seconds in times),
            f"{row['speedup_vs_wfbp']:.3f}",
        )
    console().print(table, *notes(found), sep="\n", markup=False)


def heading(simulated: Simulated) -> str:
    """What all rows share: that times are predicted, by which algorithm, and where figures come from."""
    row, settings = simulated.row, simulated.scenario.settings
    uneven = [f"straggler {settings.straggler}"] * (settings.straggler is not None)
    uneven += [f"jitter {settings.jitter}"] * bool(parse_jitter(settings.jitter))
    contention = simulated.scenario.contention
    shared = contention.stall > 0 or contention.stretch > 1
    uneven += [f"{contention} ({ORIGINS[contention.origin]})"] * shared
    network = f"{row['network']} ({ORIGINS[row['network_origin']]})"
    return f"Predicted, with {row['algorithm']} on the network {network}\n{'; '.join([compute_text(row), *uneven])}"


def compute_text(row: Mapping[str, Any]) -> str:
    """Where the seconds of compute and of updates come from."""
    update_ns = row["update_s_per_element"] * 1e9
    update = f"{update_ns:.3g} ns for each parameter ({ORIGINS[row['update_origin']]})" if update_ns else "no time"
    return f"compute: {row['compute']} ({ORIGINS[row['compute_origin']]}); updates: {update}"


def notes(found: Sequence[Simulated]) -> list[str]:
    """For what the row waits that waits longest."""
    worst = max(found, key=lambda each: each.row["exposed_comm_s"])
    parts = exposed_parts(worst)
    if not parts:
        return ["No row waits for communication."]
    row = worst.row
    what = f"{row['model']}, {row['schedule']}, fusion {row['fusion']}, {row['ranks']} ranks"
    waits = [f"  {seconds * 1e3:.1f} ms for the {name}" for name, seconds in parts[:MOST]]
    helps = [f"  {seconds * 1e3:.1f} ms an iteration with {change}" for change, seconds in remedies(worst)]
    now = f"What would help, one change at a time, where an iteration takes {row['iteration_s'] * 1e3:.1f} ms:"
    return [f"{what} waits longest:", *waits, *([now, *helps] if helps else [])]


def remedies(simulated: Simulated) -> list[tuple[str, float]]:
    """What an iteration would take with one thing changed, where that is less; the best first."""
    scenario, prediction = simulated.scenario, simulated.prediction
    name, fusion = prediction.schedule, prediction.fusion
    schedule = find_schedules([name])[name]
    tried = {
        "twice the bandwidth": seconds_of(scenario.rewired(beta=0.5), name, schedule, fusion),
        "half the latency": seconds_of(scenario.rewired(alpha=0.5), name, schedule, fusion),
    }
    if scenario.wires.network.o:
        tried["half the processor's time of a message"] = seconds_of(scenario.rewired(o=0.5), name, schedule, fusion)
    tried |= {f"fusion {other}": seconds_of(scenario, name, schedule, other) for other in FUSIONS if other != fusion}
    others = {other: kind for other, kind in SCHEDULES.items() if other != name}
    tried |= {f"schedule {other}": seconds_of(scenario, other, kind, fusion) for other, kind in others.items()}
    better = [each for each in tried.items() if each[1] < GAIN * fmean(prediction.iteration_s)]
    return sorted(better, key=lambda each: each[1])


def seconds_of(scenario: Scenario, name: str, schedule: type[Schedule], fusion: str) -> float:
    """What an iteration would take; infinity where the algorithm does not serve the schedule, or has too much to do."""
    try:
        return fmean(scenario.predict(name, schedule, fusion).iteration_s)
    except ValueError:
        return math.inf


def exposed_parts(simulated: Simulated) -> list[tuple[str, float]]:
    """For which collective of which bucket compute waits, and how long on the slowest rank; the longest first."""
    names, found = simulated.scenario.model.names, defaultdict[str, float](float)
    for wait in simulated.prediction.waits:
        what, bucket = wait.collective, wait.bucket
        if bucket is not None:
            what += f" of bucket {bucket.index} ({span(names, bucket.uses)}, {bucket.nbytes} bytes)"
        found[what] += wait.seconds
    return sorted(found.items(), key=lambda part: -part[1])


def span(names: Sequence[str], uses: Sequence[int]) -> str:
    """The layers of a bucket, by their names."""
    first, last = names[uses[0]], names[uses[-1]]
    return first if first == last else f"{first} to {last}"
