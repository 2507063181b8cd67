"""Cells: the speed-up over wfbp by ranks and fusion; a panel for each model and each other schedule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dear_mpi.see.sweep.cells import Table, draw_cells, least_of
from dear_mpi.see.sweep.panels import BELOW_INCHES, WIDEST, panels
from dear_mpi.see.sweep.sweep import Sweep, label
from dear_mpi.training.schedules import BASELINE

SHADES = "PuOr"  # can be told apart by all readers, and is white in the middle
PALE = 1.6  # how many times as far the colours reach: black frames are seen on them
GAP_INCHES = 0.1  # between the panels and the scale
LEAST_LIMIT = 1.05  # of the scale: what differs by less stays pale
HOW_TO_READ = (
    f"speed-up over {BASELINE} with the same fusion: above 1, violet, faster; below 1, orange, slower\n"
    "in a frame: the fusion with the shortest iteration on this number of ranks"
)


def draw_speedups(sweep: Sweep, heading: str) -> Any:
    """The figure; ``heading`` stands below its title."""
    from matplotlib.colors import LogNorm

    schedules = [schedule for schedule in sweep.schedules if schedule != BASELINE]
    cases = [(model, schedule) for model in sweep.models for schedule in schedules]
    tables = [table_of(sweep, model, schedule) for model, schedule in cases]
    figure, axes = panels(
        len(cases),
        columns=min(len(cases), WIDEST) if len(schedules) == 1 else len(schedules),
        inches=tables[0].inches,
        below=BELOW_INCHES,
        title=f"Speed-up over {BASELINE} by ranks and fusion",
        notes=f"{heading}\n{HOW_TO_READ}",
    )
    limit = speedup_limit(value for table in tables for line in table.values for value in line)
    norm = LogNorm(limit**-PALE, limit**PALE)  # 1 is in the middle, twice as fast as far from it as half as fast
    for panel, (model, schedule), table in zip(axes, cases, tables, strict=True):
        cells = draw_cells(panel, table, text="{:.2f}".format, shades=SHADES, norm=norm)
        panel.set(title=f"{label(model)}, {label(schedule)}", xlabel="fusion", ylabel="ranks")
    pad = GAP_INCHES / figure.get_figheight()
    scale = figure.colorbar(cells, ax=axes, location="bottom", shrink=0.5, aspect=40, pad=pad)
    scale.set_ticks([1 / limit, 1, limit], labels=[f"{each:.2f}" for each in (1 / limit, 1, limit)])
    scale.minorticks_off()
    scale.ax.set_xlim(1 / limit, limit)
    return figure


def speedup_limit(values: Iterable[float]) -> float:
    """The end of the scale: the largest speed-up or slow-down."""
    return max(LEAST_LIMIT, *(max(value, 1 / value) for value in values))


def table_of(sweep: Sweep, model: str, schedule: str) -> Table:
    """Speed-ups, and for each number of ranks where an iteration is shortest."""
    rows = [
        [sweep.row(model=model, schedule=schedule, ranks=ranks, fusion=fusion) for fusion in sweep.fusions]
        for ranks in sweep.ranks
    ]
    values = [[row["speedup_vs_wfbp"] for row in line] for line in rows]
    times = [[row["iteration_s"] for row in line] for line in rows]
    best = [(line, column) for line, seconds in enumerate(times) for _, column in least_of([seconds])]
    return Table([*map(str, sweep.ranks)], [*map(label, sweep.fusions)], values, best)
