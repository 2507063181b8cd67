"""Show ``dear-mpi simulate``: a table, the possible gain of a schedule, and remedies in words."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.reporting.terminal import alike, console
from dear_mpi.reporting.units import format_bytes, plural
from dear_mpi.simulate.gains import at_bound, fastest, slow_baselines, verdicts
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.training.routes.find import FULL

MOST = 3  # named parts of the exposed time
ORIGINS = {"given": "assumed", "fitted": "fitted from measured rows", "published": "fitted to published throughputs"}
ORIGINS |= {"measured": "measured", "measured, scaled": "measured, then scaled", "predicted": "predicted from FLOPs"}
ORIGINS |= {"predicted, backward given": "predicted from FLOPs; backward assumed"}
TIMES = {
    "iteration": "iteration_s",
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "updates": "update_s",
    "rest": "rest_s",
    "bound": "bound_s",
}
OPTIONAL = ("updates", "rest")  # left out if no row has any
LEAST_S = 5e-5  # less prints as 0.0
SAID: dict[str, Callable[[Mapping[str, Any]], str]] = {  # the subject of a row; in the title if equal in all rows
    "model": lambda row: str(row["model"]).removeprefix("synthetic:"),
    "ranks": lambda row: plural(row["ranks"], "rank"),
    "schedule": lambda row: str(row["schedule"]),
    "algorithm": lambda row: f"algorithm {row['algorithm']}",
    "wire": lambda row: f"wire {row['wire']}",
    "fusion": lambda row: f"fusion {row['fusion']}",
    "buckets": lambda row: plural(row["buckets"], "bucket"),
}


IN_HEADING = ("algorithm", "wire")


def show_simulation(found: Sequence[Simulated], helps: Sequence[tuple[str, float]]) -> None:
    """Show all rows, possible gains, the fastest row's waits, and remedies (``remedies``).

    The title has the values shared by all rows of a model, so that names fit in 80 columns.
    """
    empty = {head for head in OPTIONAL if all(each.row[TIMES[head]] < LEAST_S for each in found)}
    times = {head: key for head, key in TIMES.items() if head not in empty}
    models = list(dict.fromkeys(each.row["model"] for each in found))
    tables = [table_of([each.row for each in found if each.row["model"] == model], times) for model in models]
    tables[0].title = f"{heading(found)}\n{tables[0].title}"
    tables[-1].caption = caption(times)
    said = [*warnings(found), *slow_baselines(found), *verdicts(found), *filter(None, [at_bound(found)])]
    console().print(*tables, *said, *notes(found, helps), sep="\n", markup=False)


def table_of(rows: Sequence[Mapping[str, Any]], times: Mapping[str, str]) -> Table:
    varied = [name for name in SAID if not alike(name, rows) or name == "schedule"]
    title = ", ".join(tell(rows[0]) for name, tell in SAID.items() if name not in (*varied, *IN_HEADING))
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for head in (*varied, *times, "/ wfbp"):
        foldable = head in ("fusion", "algorithm", "wire")
        words = foldable or head == "schedule"
        table.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not foldable)
    for row in rows:
        told = [PurePath(str(row[name])).name for name in varied]  # without the folder of a user's file
        told += [f"{row[key] * 1e3:.1f}" for key in times.values()]
        table.add_row(*told, f"{row['speedup_vs_wfbp']:.3f}")
    return table


def caption(columns: Collection[str]) -> str:
    """Explain these columns of times."""
    rest = "; rest: the loss, packing, Python" * ("rest" in columns)
    left_out = " and ".join(name for name in OPTIONAL if name in columns)
    bound = "least time that the schedule allows" + f", without {left_out}" * bool(left_out)
    return f"ms of an iteration on the slowest rank; exposed: waiting for communication{rest}; bound: {bound}"


def heading(found: Sequence[Simulated]) -> str:
    """Return the common heading: predicted times, the network, and the sources of figures."""
    row, settings, algorithms = found[0].row, found[0].scenario.settings, found[0].scenario.settings.algorithms
    uneven = [f"straggler {settings.straggler}"] * (settings.straggler is not None)
    uneven += [f"jitter {settings.jitter}, means of {plural(settings.counted, 'iteration')}"] * bool(row["jitter"])
    uneven += [f"{row['ranks_per_core']:g} ranks share a core"] * (row["ranks_per_core"] != 1)
    if settings.profile is not None and settings.profile.code_factor is not None:
        uneven.append(f"codes: {row['code_factor']:.2g} times as long as on a core of their own (measured)")
    network = f"{row['network']} ({ORIGINS[row['network_origin']]})"
    compute, update_ns = f"{row['compute']} ({ORIGINS[row['compute_origin']]})", row["update_s_per_element"] * 1e9
    update = f"{update_ns:.3g} ns for each parameter ({ORIGINS[row['update_origin']]})" if update_ns else "no time"
    lines = [
        f"Predicted, with {', '.join(algorithms)} on the network {network}",
        ", ".join(exchange_texts([each.row for each in found], settings)),
        "; ".join([f"compute: {compute}; updates: {update}", *uneven]),
    ]
    return "\n".join(filter(None, lines))


def exchange_texts(rows: Sequence[Mapping[str, Any]], settings: Settings) -> list[str]:
    """Describe the non-default exchange settings shared by all rows."""
    row = rows[0]
    usual = dict.fromkeys(("optimizer", "weights", "route", "wire", "clip"))
    usual |= {"route": FULL.name, "wire": settings.types[1], "loss_scale": "none"}
    said = [
        f"{name.replace('_', ' ')} {row[name]}"
        for name, value in usual.items()
        if alike(name, rows) and row[name] != value
    ]
    segment_bytes = settings.segment_bytes
    return said if segment_bytes is None else [*said, f"segment {format_bytes(segment_bytes)}"]


def warnings(found: Sequence[Simulated]) -> list[str]:
    """Warn about doubtful times, and about features that an algorithm lacks."""
    lacking = dict.fromkeys(each.scenario.algorithm for each in found if each.scenario.lacks_rates)
    said = [f"note: {name} works without rates inside and between hosts: a topology has none" for name in lacking]
    settings = found[0].scenario.settings
    profile, shared = settings.profile, settings.ranks_per_core > 1
    if profile is None:
        return [*said, "note: layers of a synthetic model sleep, so they share no core"] if shared else said
    if any(use.exchange_s for use in profile.uses):
        said.append("warning: what layers exchange takes as long as in the profile, on whatever network")
    if profile.ranks == 1 or shared:
        return said
    taken = f"warning: the profile was taken on {profile.ranks} ranks under {profile.schedule}"
    why = "layers share cores and memory with other ranks and with messages"
    return [*said, f"{taken}, where {why}: take it on one rank"]


def notes(found: Sequence[Simulated], helps: Sequence[tuple[str, float]]) -> list[str]:
    """Describe the fastest row's waits and remedies; see ``fastest`` if there are several."""
    first, *others = fastest(found)
    which = f"The fastest row is {case(first)}" if not others else f"Of the fastest rows, {case(first)}"
    if not first.row["exposed_comm_s"]:
        return ["The fastest rows wait for no communication." if others else f"{which}; it waits for no communication."]
    waits = [f"  {seconds * 1e3:.1f} ms for the {name}" for name, seconds in exposed_parts(first)[:MOST]]
    said = [f"  {seconds * 1e3:.1f} ms an iteration with {change}" for change, seconds in helps]
    now = f"What would help it, one change at a time, where an iteration takes {first.row['iteration_s'] * 1e3:.1f} ms:"
    return [f"{which}{' waits longest:' if others else '; it waits:'}", *waits, *([now, *said] if said else [])]


def case(simulated: Simulated) -> str:
    """Name a row's case."""
    said = ", ".join(SAID[name](simulated.row) for name in ("model", "ranks", "schedule", "algorithm", "fusion"))
    return said + simulated.wire_text


def exposed_parts(simulated: Simulated) -> list[tuple[str, float]]:
    """Return the waits of compute on the slowest rank, longest first, with their seconds.

    Each names the collective and bucket, or the exchange and layer.
    """
    names, found = simulated.scenario.model.names, defaultdict[str, float](float)
    for wait in simulated.prediction.waits:
        what, bucket = wait.collective, wait.bucket
        if bucket is not None:
            layers = " to ".join(dict.fromkeys((names[bucket.uses[0]], names[bucket.uses[-1]])))
            what += f" of bucket {bucket.index} ({layers}, {bucket.nbytes} bytes)"
        if wait.use is not None:
            what += f" of {names[wait.use]}"
        found[what] += wait.seconds
    return sorted(found.items(), key=lambda part: -part[1])
