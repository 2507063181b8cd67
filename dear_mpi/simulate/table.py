"""What ``dear-mpi simulate`` shows: a table, and where the time of the slowest part goes, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.remedies import longest
from dear_mpi.simulate.sweep import Simulated

__all__ = ["exposed_parts", "heading", "show_simulation"]

MOST = 3  # parts of the exposed time that are named
ORIGINS = {"given": "as given", "fitted": "fitted from measured rows", "published": "fitted to published throughputs"}
ORIGINS |= {"measured": "measured", "predicted": "predicted from FLOPs"}
ORIGINS |= {"predicted, backward given": "predicted from FLOPs; backward as given"}
ORIGINS["replayed"] = "as given; replayed by SimGrid"
TIMES = {
    "iteration": "iteration_s",
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "updates": "update_s",
    "rest": "rest_s",
    "bound": "bound_s",
}
OPTIONAL = ("updates", "rest")  # left out where no row has any
LEAST_S = 5e-5  # less is 0.0 in a table


def show_simulation(found: Sequence[Simulated], helps: Sequence[tuple[str, float]]) -> None:
    """All rows; of the one that waits longest, for what; and what would help it (``remedies``)."""
    empty = {head for head in OPTIONAL if all(each.row[TIMES[head]] < LEAST_S for each in found)}
    times = {head: key for head, key in TIMES.items() if head not in empty}
    table = Table(title=heading(found[0]), caption=caption(times), box=SIMPLE_HEAD, padding=0)
    words = ("schedule", "fusion")
    for head in ("model", "ranks", *words, "buckets", *times, "/ wfbp"):
        table.add_column(head, justify="left" if head in ("model", *words) else "right")
    for each in found:
        row = each.row
        table.add_row(
            row["model"].removeprefix("synthetic:"),
            *(str(row[name]) for name in ("ranks", *words, "buckets")),
            *(f"{row[key] * 1e3:.1f}" for key in times.values()),
            f"{row['speedup_vs_wfbp']:.3f}",
        )
    console().print(table, *notes(found, helps), sep="\n", markup=False)


def caption(columns: Collection[str]) -> str:
    """What these columns of times mean."""
    rest = "; rest: the loss, packing, Python" * ("rest" in columns)
    left_out = " and ".join(name for name in OPTIONAL if name in columns)
    bound = "least time that the schedule allows" + f", without {left_out}" * bool(left_out)
    return f"ms of an iteration on the slowest rank; exposed: waiting for communication{rest}; bound: {bound}"


def heading(simulated: Simulated) -> str:
    """What all rows share: that times are predicted, by which algorithm, and where figures come from."""
    row, settings = simulated.row, simulated.scenario.settings
    uneven = [f"straggler {settings.straggler}"] * (settings.straggler is not None)
    uneven += [f"jitter {settings.jitter}, means of {plural(settings.counted, 'iteration')}"] * bool(row["jitter"])
    contention = simulated.scenario.contention
    uneven += [f"{contention} ({ORIGINS[contention.origin]})"] * (not contention.is_free)
    network = f"{row['network']} ({ORIGINS[row['network_origin']]})"
    return f"Predicted, with {row['algorithm']} on the network {network}\n{'; '.join([compute_text(row), *uneven])}"


def compute_text(row: Mapping[str, Any]) -> str:
    """Where the seconds of compute and of updates come from."""
    update_ns = row["update_s_per_element"] * 1e9
    update = f"{update_ns:.3g} ns for each parameter ({ORIGINS[row['update_origin']]})" if update_ns else "no time"
    return f"compute: {row['compute']} ({ORIGINS[row['compute_origin']]}); updates: {update}"


def notes(found: Sequence[Simulated], helps: Sequence[tuple[str, float]]) -> list[str]:
    """For what the row waits that waits longest (of equal ones the first), and what would help it."""
    rows = longest(found)
    if not rows:
        return ["No row waits for communication."]
    worst, others = rows[0], len(rows) - 1
    alike = f" (as long as {'another row' if others == 1 else f'{others} others'})" * bool(others)
    waits = [f"  {seconds * 1e3:.1f} ms for the {name}" for name, seconds in exposed_parts(worst)[:MOST]]
    said = [f"  {seconds * 1e3:.1f} ms an iteration with {change}" for change, seconds in helps]
    now = f"What would help, one change at a time, where an iteration takes {worst.row['iteration_s'] * 1e3:.1f} ms:"
    return [f"{case(worst.row)} waits longest{alike}:", *waits, *([now, *said] if said else [])]


def case(row: Mapping[str, Any]) -> str:
    """What is simulated in a row."""
    return f"{row['model']}, {row['schedule']}, fusion {row['fusion']}, {plural(row['ranks'], 'rank')}"


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
