"""Curves: what an iteration takes by the number of ranks; a panel for each model, a line for each schedule.

A thin line of the same colour is the bound of the schedule, and the grey floor is compute. What lies between the floor
and a line is communication for which compute waits, and updates.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from dear_mpi.see.figure import BELOW_INCHES, label, legend_below, panels, scale_by_powers
from dear_mpi.see.sweep.sweep import Sweep

PANEL_INCHES = 3.6, 3.0
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, but for yellow
MARKERS = "os^Dv"  # hollow: of lines that lie on each other, all are seen
DASHES = ("-", "--", "-.", ":")
THIN, FLOOR = 0.7, "0.88"


def draw_curves(sweep: Sweep, heading: str) -> Any:
    """The figure; ``heading`` stands below its title."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    fused = f", fusion {label(sweep.fusions[0])}" * (len(sweep.fusions) == 1)  # several have their names in the legend
    figure, axes = panels(
        len(sweep.models),
        inches=PANEL_INCHES,
        below=BELOW_INCHES,
        title=f"Time of an iteration by the number of ranks{fused}",
        notes=heading,
    )
    for panel, model in zip(axes, sweep.models, strict=True):
        draw_panel(panel, sweep, model)
    lines, _ = axes[0].get_legend_handles_labels()
    bound = Line2D([], [], color="black", linewidth=THIN, label="thin: bound")
    legend_below(figure, [*lines, bound, Patch(color=FLOOR, label="compute")])
    return figure


def draw_panel(axes: Any, sweep: Sweep, model: str) -> None:
    """One model."""
    for number, (schedule, fusion) in enumerate(product(sweep.schedules, sweep.fusions)):
        rows = [sweep.row(model=model, schedule=schedule, fusion=fusion, ranks=ranks) for ranks in sweep.ranks]
        look = {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[sweep.fusions.index(fusion) % len(DASHES)]}
        name = label(schedule) if len(sweep.fusions) == 1 else f"{label(schedule)}, fusion {label(fusion)}"
        marker = {"marker": MARKERS[number % len(MARKERS)], "markerfacecolor": "none"}
        axes.plot(sweep.ranks, [row["iteration_s"] * 1e3 for row in rows], label=name, **look, **marker)
        axes.plot(sweep.ranks, [row["bound_s"] * 1e3 for row in rows], linewidth=THIN, **look)
    axes.fill_between(sweep.ranks, [1e3 * compute_s(sweep, model, ranks) for ranks in sweep.ranks], color=FLOOR)
    scale_by_powers(axes, sweep.ranks)
    axes.set(title=label(model), xlabel="ranks", ylabel="ms of an iteration")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="plain")


def compute_s(sweep: Sweep, model: str, ranks: int) -> float:
    """Seconds of compute that no schedule avoids: with jitter each has others."""
    return min(float(row["compute_s"]) for row in sweep.rows if (row["model"], row["ranks"]) == (model, ranks))
