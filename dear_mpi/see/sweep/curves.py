"""Curves: what an iteration takes by the number of ranks; a panel for each model, a line for each schedule.

A thin line of the same colour is the bound of the schedule, and the grey floor is compute. What lies between the floor
and a line is communication for which compute waits, and updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from dear_mpi.see.sweep.panels import BELOW_INCHES, WIDEST, explain_below, panels
from dear_mpi.see.sweep.sweep import Row, Sweep, label

PANEL_INCHES = 3.6, 3.0
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, but for yellow
MARKERS = "os^Dv"  # hollow: of lines that lie on each other, all are seen
DASHES = ("-", "--", "-.", ":")
THIN, FLOOR = 0.7, "0.88"
APART = 0.1  # of the axis: numbers of ranks that are closer would run into each other


def draw_curves(sweep: Sweep, heading: str) -> Any:
    """The figure; ``heading`` stands below its title."""
    models = sweep.models
    figure, axes = panels(
        len(models),
        columns=min(len(models), WIDEST),
        inches=PANEL_INCHES,
        below=BELOW_INCHES,
        title="Time of an iteration by the number of ranks" + fusion_text(sweep),
        notes=heading,
    )
    for panel, model in zip(axes, models, strict=True):
        draw_panel(panel, sweep, model)
    explain_below(figure, [*axes[0].get_legend_handles_labels()[0], *unnamed()])
    return figure


def unnamed() -> list[Any]:
    """What has no name of its own in a panel."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [Line2D([], [], color="black", linewidth=THIN, label="thin: bound"), Patch(color=FLOOR, label="compute")]


def fusion_text(sweep: Sweep) -> str:
    """What all lines have in common; of several fusions the legend has their names."""
    return f", fusion {label(sweep.fusions[0])}" if len(sweep.fusions) == 1 else ""


def draw_panel(axes: Any, sweep: Sweep, model: str) -> None:
    """One model."""
    for number, (schedule, fusion) in enumerate(product(sweep.schedules, sweep.fusions)):
        rows = [sweep.row(model=model, schedule=schedule, fusion=fusion, ranks=ranks) for ranks in sweep.ranks]
        look = {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[sweep.fusions.index(fusion) % len(DASHES)]}
        name = label(schedule) if len(sweep.fusions) == 1 else f"{label(schedule)}, fusion {label(fusion)}"
        marker = {"marker": MARKERS[number % len(MARKERS)], "markerfacecolor": "none"}
        axes.plot(sweep.ranks, in_ms(rows, "iteration_s"), label=name, **look, **marker)
        axes.plot(sweep.ranks, in_ms(rows, "bound_s"), linewidth=THIN, **look)
    axes.fill_between(sweep.ranks, [1e3 * compute_s(sweep, model, ranks) for ranks in sweep.ranks], color=FLOOR)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown := readable(sweep.ranks), [str(ranks) for ranks in shown])
    axes.minorticks_off()
    axes.set(title=label(model), xlabel="ranks", ylabel="ms of an iteration")
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="plain")


def compute_s(sweep: Sweep, model: str, ranks: int) -> float:
    """Seconds of compute that no schedule avoids: with jitter each has others."""
    return min(float(row["compute_s"]) for row in sweep.rows if (row["model"], row["ranks"]) == (model, ranks))


def in_ms(rows: Sequence[Row], key: str) -> list[float]:
    """Milliseconds of each row."""
    return [row[key] * 1e3 for row in rows]


def readable(ranks: Sequence[int]) -> list[int]:
    """The numbers of ranks that an axis names: all but those too close to the one before, on a scale of powers of 2.

    >>> readable([4, 8, 16]), readable([2, 60, 64])
    ([4, 8, 16], [2, 60])
    """
    least = APART * math.log2(ranks[-1] / ranks[0])
    shown = [ranks[0]]
    for number in ranks[1:]:
        if math.log2(number / shown[-1]) >= least:
            shown.append(number)
    return shown
