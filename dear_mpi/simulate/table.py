"""Show ``dear-mpi simulate``: a table, the possible gain of a schedule in a sentence, and a timeline."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.reporting.terminal import alike, console
from dear_mpi.reporting.units import format_bytes, plural
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import FUSIONS, Simulated, seconds_of
from dear_mpi.training.fabric.virtual import of_rank
from dear_mpi.training.log import KEPT, Log
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.schedules import BASELINE, SCHEDULES
from dear_mpi.training.spans import Rank, Run, Timeline, common, rank_of
from dear_mpi.training.virtual_trainer import TIE, UNFAIR

ORIGINS = {"given": "assumed", "fitted": "fitted from measured rows", "published": "fitted to published throughputs"}
ORIGINS |= {"measured": "measured", "measured, scaled": "measured, then scaled"}
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
FACTS = ("model", "ranks", "schedule", "fusion", "buckets", "algorithm", "network", "compute")
MOST_RANKS = 64  # of a timeline


def show_simulation(found: Sequence[Simulated]) -> None:
    """Show all rows, and sentences on each model and number of ranks.

    The title has the values shared by all rows of a model, so that names fit in 80 columns.
    """
    empty = {head for head in OPTIONAL if all(each.row[TIMES[head]] < LEAST_S for each in found)}
    times = {head: key for head, key in TIMES.items() if head not in empty}
    models = list(dict.fromkeys(each.row["model"] for each in found))
    tables = [table_of([each.row for each in found if each.row["model"] == model], times) for model in models]
    tables[0].title = f"{heading(found)}\n{tables[0].title}"
    tables[-1].caption = caption(times)
    said = [*warnings(found), *slow_baselines(found), *verdicts(found)]
    console().print(*tables, *said, sep="\n", markup=False)


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
    uneven += [f"{row['ranks_per_core']:g} ranks share a core"] * (row["ranks_per_core"] != 1)
    uneven += [f"codes: {row['code_factor']:.2g} times as long as their wire says"] * (row["code_factor"] != 1)
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
    usual = {"optimizer": None, "weights": None, "route": FULL.name, "wire": settings.types[1], "clip": None}
    usual |= {"loss_scale": "none"}
    shared = [name for name, value in usual.items() if alike(name, rows) and rows[0][name] != value]
    said = [f"{name.replace('_', ' ')} {rows[0][name]}" for name in shared]
    return said if settings.segment_bytes is None else [*said, f"segment {format_bytes(settings.segment_bytes)}"]


def warnings(found: Sequence[Simulated]) -> list[str]:
    """Warn about doubtful times of a profile."""
    profile, said = found[0].scenario.settings.profile, list[str]()
    if profile and any(use.exchange_s for use in profile.uses):
        said.append("warning: what layers exchange takes as long as in the profile, on whatever network")
    if profile and profile.ranks > 1 and found[0].row["ranks_per_core"] == 1:
        taken = f"warning: the profile was taken on {profile.ranks} ranks under {profile.schedule}"
        why = "layers share cores and memory with other ranks and with messages"
        said.append(f"{taken}, where {why}: take it on one rank")
    return said


def grouped(found: Sequence[Simulated], *keys: str) -> list[list[Simulated]]:
    groups = defaultdict[tuple[Any, ...], list[Simulated]](list)
    for each in found:
        groups[tuple(each.row[key] for key in keys)].append(each)
    return list(groups.values())


def verdicts(found: Sequence[Simulated]) -> list[str]:
    """Describe each model and number of ranks; speed-ups are over the fastest of its baseline rows."""
    return [verdict(rows) for rows in grouped(found, "model", "ranks")]


def verdict(rows: Sequence[Simulated]) -> str:
    """Describe a model on one number of ranks: its time, our schedules' possible gain, and its fastest row."""
    base, best = min((each.base for each in rows), key=lambda base: base.iteration_s), rows[0]
    for each in rows:
        if each.row["iteration_s"] < (1 - TIE) * best.row["iteration_s"]:
            best = each
    row, limit_s, reduced_s = best.row, min(map(least_s, rows)), sum(base.network_s.values())
    takes = f"all-reduce takes {ms(reduced_s)} ms, forward {ms(base.forward_s)}, backward {ms(base.backward_s)}"
    where = f"{SAID['model'](row)}, {SAID['ranks'](row)}"
    most, gained = (gain(base.iteration_s, seconds) for seconds in (limit_s, row["iteration_s"]))
    wire = f", wire {row['wire']}" * (len(best.scenario.settings.wires) > 1)
    names = f"{row['schedule']}, fusion {row['fusion']}, {row['algorithm']}{wire}"
    said = f"{where}: {takes}: none of our schedules gains more than {100 * most:.1f} % over {BASELINE}"
    return f"{said}; the fastest row ({names}) gains {100 * gained:.1f} %."


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


def slow_baselines(found: Sequence[Simulated]) -> list[str]:
    """Warn if a baseline takes over 2 % longer than with the best tried buckets.

    Speed-ups over a peer with badly chosen buckets are too large.
    """
    said = []
    for rows in grouped([each for each in found if each.row["schedule"] != BASELINE], "model", "ranks", "algorithm"):
        row, asked = rows[0].row, {each.row["fusion"]: each.base.iteration_s for each in rows}
        kind, others = SCHEDULES[BASELINE], [each for each in FUSIONS if each not in asked]
        tried = asked | {each: seconds_of(rows[0].scenario, BASELINE, kind, each) for each in others}
        worst, best = max(asked, key=asked.__getitem__), min(tried, key=tried.__getitem__)
        if asked[worst] > (1 + UNFAIR) * tried[best]:
            said.append(
                f"warning: {SAID['model'](row)}, {SAID['ranks'](row)}, {row['algorithm']}: {BASELINE} takes "
                f"{ms(asked[worst])} ms with fusion {worst}, {ms(tried[best])} ms with {best}: with the former, "
                f"speed-ups are {gain(asked[worst], tried[best]):.1%} too high."
            )
    return said


def gain(base_s: float, seconds: float) -> float:
    """Return the relative speed gain, as a part of the time."""
    return base_s / seconds - 1 if seconds else 0.0


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def timeline_of(found: Sequence[Simulated]) -> Timeline:
    """Return the runs with a kept log, each named by its schedule and its other varied settings."""
    rows = [each.row for each in found]
    named = ("model", "ranks", "fusion", "algorithm", "wire")
    varied = [name for name in named if len({row[name] for row in rows}) > 1]

    def name(row: Mapping[str, Any]) -> str:
        said = [SAID[each](row) if each in ("ranks", "fusion") else str(row[each]) for each in varied]
        return ", ".join([row["schedule"], *said])

    logs = [(each, each.prediction.log) for each in found]
    runs = [run_of(log, name(each.row), each.scenario.model.names, each.row["ranks"]) for each, log in logs if log]
    facts = common([{name: row[name] for name in FACTS} for row in rows]) | {"origin": heading(found)}
    return Timeline(live=False, runs=tuple(runs), facts=facts)


def run_of(log: Log, name: str, layers: Sequence[str], ranks: int) -> Run:
    """Return the ranks' last iterations, as a single rank if all are alike."""
    clocks = np.size(log.last.end)
    names = [f"rank {rank}" for rank in range(min(clocks, MOST_RANKS))]
    if clocks == 1 < ranks:
        names = [f"each of {ranks} ranks"]

    def traced(rank: int) -> Rank:
        return rank_of(log, names[rank], layers, lambda lane, mark: of_rank(mark, rank), kept=KEPT)

    return Run(name, tuple(map(traced, range(len(names)))), ranks)
