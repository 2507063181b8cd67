"""Bars: where the time of an iteration goes, on one number of ranks with one fusion; a panel for each model."""

from __future__ import annotations

from typing import Any

import numpy as np

from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import BELOW_INCHES, label, legend_below, panels, short_ms, upright
from dear_mpi.see.sweep.sweep import Row, Sweep

COLORS = {"compute": "#999999", "exposed communication": "#D55E00", "updates and the rest": "#56B4E9"}
HOW_TO_READ = "bound: the least time that the schedule allows"
WIDTH_INCHES, PANEL_INCHES, BAR_INCHES = 8.0, 1.0, 0.42
ROOM = 1.36  # of the axis, for the numbers after the bars
NUMBERED = 0.09  # of the longest bar: shorter ones have no room for a number
ROUNDING = 1e-9  # of an iteration
UNCLEAR = ("too noisy", "cannot tell")


def draw_bars(sweep: Sweep, heading: str) -> Any:
    """The figure; ``heading`` stands below its title."""
    from matplotlib.patches import Patch

    where = f"{plural(sweep.ranks[0], 'rank')}, fusion {label(sweep.fusions[0])}"
    figure, axes = panels(
        len(sweep.models),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + BAR_INCHES * len(sweep.schedules)),
        below=BELOW_INCHES,
        title=f"Where the time of an iteration goes: {where}",
        notes=f"{heading}\n{HOW_TO_READ}; speed-up: over {sweep.over}",
    )
    for panel, model in zip(axes, sweep.models, strict=True):
        draw_panel(panel, [sweep.row(model=model, schedule=schedule) for schedule in sweep.schedules])
        panel.set(title=label(model), xlabel="ms of an iteration")
    shown = [name for name in COLORS if any(split(row)[name] > ROUNDING * row["iteration_s"] for row in sweep.rows)]
    legend_below(figure, [*(Patch(color=COLORS[name], label=name) for name in shown), upright("bound")])
    return figure


def split(row: Row) -> dict[str, float]:
    """Seconds of an iteration by colour, none of them twice."""
    rest_s = row["iteration_s"] - row["compute_s"] - row["exposed_comm_s"]
    return dict(zip(COLORS, (row["compute_s"], row["exposed_comm_s"], max(0.0, rest_s)), strict=True))


def gain(row: Row) -> str:
    """What is known of the speed-up; of an unclear measurement, only that it is unclear.

    >>> gain({"speedup_vs_wfbp": 1.25}), gain({"speedup_vs_wfbp": 0.8, "verdict": "too noisy"})
    ('speed-up 1.25', 'too noisy')
    """
    verdict = row.get("verdict", "faster")
    return verdict if verdict in UNCLEAR else f"speed-up {row['speedup_vs_wfbp']:.2f}"


def draw_panel(axes: Any, rows: list[Row]) -> None:
    """A bar for each schedule."""
    lines, longest_s = np.arange(len(rows)), max(row["iteration_s"] for row in rows) or 1e-3
    widths = np.array([list(split(row).values()) for row in rows]).T  # seconds, by colour and line
    for color, seconds, begins in zip(COLORS.values(), widths, np.cumsum(widths, axis=0) - widths, strict=True):
        bars = axes.barh(lines, seconds * 1e3, left=begins * 1e3, height=0.6, color=color)
        numbers = [short_ms(each) if each > NUMBERED * longest_s else "" for each in seconds]
        over_bounds = {"facecolor": color, "edgecolor": "none", "pad": 1}
        axes.bar_label(bars, numbers, label_type="center", fontsize="small", bbox=over_bounds, zorder=4)
    for line, row, end in zip(lines, rows, widths.sum(axis=0) * 1e3, strict=True):
        axes.text(end, line, f" {short_ms(row['iteration_s'])} ms, {gain(row)}", va="center", fontsize="small")
    axes.vlines([row["bound_s"] * 1e3 for row in rows], lines - 0.42, lines + 0.42, color="black")
    axes.set_yticks(lines, [label(row["schedule"]) for row in rows])
    axes.invert_yaxis()  # the first schedule on top
    axes.set_xlim(0, ROOM * longest_s * 1e3)
