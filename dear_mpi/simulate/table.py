"""What ``dear-mpi simulate`` shows: a table, and where the time of the slowest part goes, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.reporting.terminal import console
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.training.schedules import SCHEDULES, find_schedules

__all__ = ["exposed_parts", "show_simulation"]

MOST = 3  # parts of the exposed time that are named
GAIN = 0.995  # what is not worth half a percent is not named
FUSIONS = ("none", "cut:1MB", "cut:4MB", "10MB", "25MB", "100MB")
ORIGINS = {"given": "as given", "fitted": "fitted from measured rows", "published": "published for this cluster"}


def show_simulation(found: Sequence[Simulated]) -> None:
    """All rows; and of the one that waits longest, for what."""
    first = found[0]
    title = f"Predicted, on the network {first.scenario.wires.text} ({ORIGINS[first.scenario.wires.origin]})"
    caption = "ms of an iteration on the slowest rank; exposed: waiting for communication; bound: least time possible"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=0)
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
        "twice the bandwidth": scenario.rewired(beta=0.5).predict(name, schedule, fusion),
        "half the latency": scenario.rewired(alpha=0.5, o=0.5).predict(name, schedule, fusion),
    }
    tried |= {f"fusion {other}": scenario.predict(name, schedule, other) for other in FUSIONS if other != fusion}
    others = {other: kind for other, kind in SCHEDULES.items() if other != name}
    tried |= {f"schedule {other}": scenario.predict(other, kind, fusion) for other, kind in others.items()}
    found = {change: fmean(each.iteration_s) for change, each in tried.items()}
    better = [each for each in found.items() if each[1] < GAIN * fmean(prediction.iteration_s)]
    return sorted(better, key=lambda each: each[1])


def exposed_parts(simulated: Simulated) -> list[tuple[str, float]]:
    """For which collective of which bucket compute waits, and how long on the slowest rank; the longest first."""
    names, found = simulated.scenario.model.names, defaultdict[str, float](float)
    for wait in simulated.prediction.waits:
        seconds, bucket = float(np.max(wait.exposed_s)), wait.handle.bucket
        if seconds:
            what = wait.handle.collective
            if bucket is not None:
                what += f" of bucket {bucket.index} ({span(names, bucket.uses)}, {bucket.nbytes} bytes)"
            found[what] += seconds
    return sorted(found.items(), key=lambda part: -part[1])


def span(names: Sequence[str], uses: Sequence[int]) -> str:
    """The layers of a bucket, by their names."""
    first, last = names[uses[0]], names[uses[-1]]
    return first if first == last else f"{first} to {last}"
