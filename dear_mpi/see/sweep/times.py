"""Cells: what an iteration takes by fusion and schedule, on one number of ranks; a panel for each model."""

from __future__ import annotations

from typing import Any

from dear_mpi.reporting.units import plural
from dear_mpi.see.sweep.cells import Table, draw_cells, least_of
from dear_mpi.see.sweep.panels import WIDEST, panels
from dear_mpi.see.sweep.sweep import Sweep, label, milliseconds

SHADES = "Blues"
LIGHTEST = 0.03  # of the span, how far below the shortest time the scale begins: a white cell looks empty
ROOT = 0.5  # of the distance from there: one time that is far longer leaves shades for the others
LEAST_SPAN = 0.5  # of the shortest time, that the scale reaches at least: times that hardly differ look alike
HOW_TO_READ = "ms of an iteration; darker: longer than others of this model; in a frame: the shortest"


def draw_times(sweep: Sweep, heading: str) -> Any:
    """The figure; ``heading`` stands below its title."""
    from matplotlib.colors import PowerNorm

    tables = [table_of(sweep, model) for model in sweep.models]
    title = f"Time of an iteration by fusion and schedule, {plural(sweep.ranks[0], 'rank')}"
    figure, axes = panels(
        len(tables),
        columns=min(len(tables), WIDEST),
        inches=tables[0].inches,
        title=title,
        notes=f"{heading}\n{HOW_TO_READ}",
    )
    for panel, model, table in zip(axes, sweep.models, tables, strict=True):
        least, most = (found(map(found, table.values)) for found in (min, max))
        span = max(most - least, LEAST_SPAN * least) or 1
        norm = PowerNorm(ROOT, least - LIGHTEST * span, least + span)
        draw_cells(panel, table, text=milliseconds, shades=SHADES, norm=norm)
        panel.set(title=label(model), xlabel="schedule", ylabel="fusion")
    return figure


def table_of(sweep: Sweep, model: str) -> Table:
    """Seconds of an iteration."""
    values = [
        [sweep.row(model=model, fusion=fusion, schedule=schedule)["iteration_s"] for schedule in sweep.schedules]
        for fusion in sweep.fusions
    ]
    return Table([*map(label, sweep.fusions)], [*map(label, sweep.schedules)], values, least_of(values))
