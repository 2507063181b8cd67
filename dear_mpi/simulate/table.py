"""Show ``dear-mpi simulate``: a table, sentences on possible gains, a timeline."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.reporting.terminal import alike, console
from dear_mpi.reporting.units import format_bytes, grouped, plural
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import FUSIONS, Simulated, seconds_of
from dear_mpi.training.events import KEPT, Log
from dear_mpi.training.events.spans import Rank, Run, Timeline, common, rank_of
from dear_mpi.training.fabric.virtual import of_rank
from dear_mpi.training.routes.find import FULL, is_code
from dear_mpi.training.routes.route import Payload
from dear_mpi.training.schedules import BASELINE, SCHEDULES
from dear_mpi.training.virtual_trainer import TIE, UNFAIR

Row = Mapping[str, Any]
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
OPTIONAL = ("updates", "rest")  # if any row has some
LEAST_S = 5e-5
TEXTS: dict[str, Callable[[Row], str]] = {  # a row's subject; in the title if equal
    "model": lambda row: str(row["model"]).removeprefix("synthetic:"),
    "ranks": lambda row: plural(row["ranks"], "rank"),
    "schedule": lambda row: str(row["schedule"]),
    "algorithm": lambda row: f"algorithm {row['algorithm']}",
    "wire": lambda row: f"wire {row['wire']}",
    "fusion": lambda row: f"fusion {row['fusion']}",
    "buckets": lambda row: plural(row["buckets"], "bucket"),
}
FOLDED = ("fusion", "algorithm", "wire")
IN_HEADING = ("algorithm", "wire")
FACTS = ("model", "ranks", "schedule", "fusion", "buckets", "algorithm", "network", "compute")
MOST_RANKS = 64  # of a timeline


def show_simulation(found: Sequence[Simulated]) -> None:
    """Show all rows, and sentences; shared values are in the title, so that names fit in 80 columns."""
    empty = {head for head in OPTIONAL if all(each.row[TIMES[head]] < LEAST_S for each in found)}
    times = {head: key for head, key in TIMES.items() if head not in empty}
    models = grouped([each.row for each in found], lambda row: row["model"])
    tables = [table_of(rows, times) for rows in models.values()]
    tables[0].title = f"{heading(found)}\n{tables[0].title}"
    rest = "; rest: the loss, packing, Python" * ("rest" in times)
    without = " and ".join(head for head in OPTIONAL if head in times)
    bound = "least time that the schedule allows" + f", without {without}" * bool(without)
    said = "ms of an iteration on the slowest rank; exposed: waiting for communication"
    tables[-1].caption = f"{said}{rest}; bound: {bound}"
    lines = [*warnings(found), *slow_baselines(found), *verdicts(found)]
    console().print(*tables, *lines, sep="\n")


def table_of(rows: Sequence[Row], times: Mapping[str, str]) -> Table:
    varied = [name for name in TEXTS if not alike(name, rows) or name == "schedule"]
    title = ", ".join(text(rows[0]) for name, text in TEXTS.items() if name not in (*varied, *IN_HEADING))
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for head in (*varied, *times, "/ wfbp"):
        justify: Any = "left" if head in ("schedule", *FOLDED) else "right"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=head not in FOLDED)
    for row in rows:
        names = [PurePath(str(row[name])).name for name in varied]  # without folders
        table.add_row(*names, *(ms(row[key]) for key in times.values()), f"{row['speedup_vs_wfbp']:.3f}")
    return table


def heading(found: Sequence[Simulated]) -> str:
    row, settings = found[0].row, found[0].scenario.settings
    uneven = [f"straggler {settings.straggler}"] * (settings.straggler is not None)
    uneven += [f"{row['ranks_per_core']:g} ranks share a core"] * (row["ranks_per_core"] != 1)
    uneven += [f"codes: {row['code_factor']:.2g} times as long as their wire says"] * (row["code_factor"] != 1)
    network = f"{row['network']} ({ORIGINS[row['network_origin']]})"
    compute, update_ns = f"{row['compute']} ({ORIGINS[row['compute_origin']]})", row["update_s_per_element"] * 1e9
    update = f"{update_ns:.3g} ns for each parameter ({ORIGINS[row['update_origin']]})" if update_ns else "no time"
    lines = [
        f"Predicted, with {', '.join(settings.algorithms)} on the network {network}",
        ", ".join(exchange_texts([each.row for each in found], settings)),
        "; ".join([f"compute: {compute}; updates: {update}", *uneven]),
    ]
    return "\n".join(filter(None, lines))


def exchange_texts(rows: Sequence[Row], settings: Settings) -> list[str]:
    """Describe the non-default exchange settings shared by all rows."""
    usual = {"optimizer": None, "weights": None, "route": FULL.name, "wire": settings.types[1], "clip": None}
    usual |= {"loss_scale": "none"}
    shared = [name for name, value in usual.items() if alike(name, rows) and rows[0][name] != value]
    said = [f"{name.replace('_', ' ')} {rows[0][name]}" for name in shared]
    return said if settings.segment_bytes is None else [*said, f"segment {format_bytes(settings.segment_bytes)}"]


def warnings(found: Sequence[Simulated]) -> list[str]:
    """Warn about doubtful times: of a profile, and of wire formats that declare none."""
    profile, said = found[0].scenario.settings.profile, list[str]()
    if profile and any(use.exchange_s for use in profile.uses):
        said.append("warning: what layers exchange takes as long as in the profile, on whatever network")
    if profile and profile.ranks > 1 and found[0].row["ranks_per_core"] == 1:
        taken = f"warning: the profile was taken on {profile.ranks} ranks under {profile.schedule}"
        why = "layers share cores and memory with other ranks and with messages"
        said.append(f"{taken}, where {why}: take it on one rank")
    for wire, rows in grouped(found, lambda each: each.row["wire"]).items():
        codes = [stage for stage in rows[0].scenario.settings.chosen_route.stages if isinstance(stage, Payload)]
        if codes and is_code(wire) and not any(stage.compute_s(1, 1) for stage in codes):
            said.append(f"note: the wire {wire} has no encode_s or decode_s: encoding and decoding count as free")
    return said


def verdicts(found: Sequence[Simulated]) -> list[str]:
    said = []
    for rows in grouped(found, lambda each: (each.row["model"], each.row["ranks"])).values():
        base, best = min((each.base for each in rows), key=lambda base: base.iteration_s), rows[0]
        for each in rows:
            if each.row["iteration_s"] < (1 - TIE) * best.row["iteration_s"]:
                best = each
        row, reduced_s = best.row, sum(base.network_s.values())
        takes = f"all-reduce takes {ms(reduced_s)} ms, forward {ms(base.forward_s)}, backward {ms(base.backward_s)}"
        most, gained = (gain(base.iteration_s, each_s) for each_s in (min(map(least_s, rows)), row["iteration_s"]))
        wire = f", wire {row['wire']}" * (len(best.scenario.settings.wires) > 1)
        names = f"{row['schedule']}, fusion {row['fusion']}, {row['algorithm']}{wire}"
        limit = f"none of our schedules gains more than {100 * most:.1f} % over {BASELINE}"
        said.append(f"{subject(row)}: {takes}: {limit}; the fastest row ({names}) gains {100 * gained:.1f} %.")
    return said


def subject(row: Row) -> str:
    return f"{TEXTS['model'](row)}, {TEXTS['ranks'](row)}"


def least_s(simulated: Simulated) -> float:
    """Return the least bound of our schedules and the row's, with these buckets."""
    scenario, found = simulated.scenario, simulated.prediction
    bounds = (
        scenario.bound_s(schedule, found)
        for schedule in SCHEDULES.values()
        if all(serves(scenario.algorithm, each) for each in schedule.collectives)
    )
    own_s = found.forward_s + found.backward_s + found.update_s + found.rest_s
    return max(own_s, min(found.bound_s, *bounds))


def slow_baselines(found: Sequence[Simulated]) -> list[str]:
    """Warn if a baseline takes over 2 % longer than with the best tried buckets."""
    said, others = [], [each for each in found if each.row["schedule"] != BASELINE]
    for rows in grouped(others, lambda each: (subject(each.row), each.row["algorithm"])).values():
        row, asked = rows[0].row, {each.row["fusion"]: each.base.iteration_s for each in rows}
        seconds = partial(seconds_of, rows[0].scenario, BASELINE, SCHEDULES[BASELINE])
        tried = asked | {each: seconds(each) for each in FUSIONS if each not in asked}
        worst, best = max(asked, key=asked.__getitem__), min(tried, key=tried.__getitem__)
        if asked[worst] > (1 + UNFAIR) * tried[best]:
            said.append(
                f"warning: {subject(row)}, {row['algorithm']}: {BASELINE} takes "
                f"{ms(asked[worst])} ms with fusion {worst}, {ms(tried[best])} ms with {best}: with the former, "
                f"speed-ups are {gain(asked[worst], tried[best]):.1%} too high."
            )
    return said


def gain(base_s: float, seconds: float) -> float:
    return base_s / seconds - 1 if seconds else 0.0


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def timeline_of(found: Sequence[Simulated]) -> Timeline:
    """Return the runs with a kept log, named by what varies."""
    rows = [each.row for each in found]
    varied = [name for name in ("model", "ranks", "fusion", "algorithm", "wire") if not alike(name, rows)]
    runs = []
    for each in found:
        named = [TEXTS[name](each.row) if name in ("ranks", "fusion") else str(each.row[name]) for name in varied]
        if each.prediction.log:
            name = ", ".join([each.row["schedule"], *named])
            runs.append(run_of(each.prediction.log, name, each.scenario.model.names, each.row["ranks"]))
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
