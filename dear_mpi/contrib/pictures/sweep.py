"""Draw rows of ``dear-mpi simulate``, with a panel for each model and each fusion; a model's panels share one scale.

Over several numbers of ranks: a thick line per schedule, a thin one for its bound, compute as a grey floor. Otherwise
bars with the parts of an iteration.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from dear_mpi.contrib.look import label
from dear_mpi.contrib.pictures.figure import (
    COLORS,
    INSTANT_S,
    MARKERS,
    THIN,
    legend_below,
    panels,
    scale_by_powers,
    short_ms,
    upright,
    write_figure,
)
from dear_mpi.reporting.units import plural
from dear_mpi.see.tables import named
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.table import heading
from dear_mpi.training.schedules import BASELINE

Row = Mapping[str, Any]

WIDEST = 3  # models in a line
CURVES_INCHES = 3.6, 3.0
FLOOR = "0.88"
ABOVE = 1.05  # of the longest iteration

BARS_INCHES, PANEL_INCHES, BAR_INCHES = 8.0, 1.0, 0.42
PARTS = {"compute": "#999999", "exposed communication": "#D55E00", "updates and the rest": "#56B4E9"}
ROOM = 1.36  # for numbers after the bars
NUMBERED = 0.09  # of the longest bar: shorter parts show no number
ROUNDING = 1e-9  # of an iteration


def write_sweep(flag: str, path: Path, found: Sequence[Simulated]) -> None:
    rows = named([each.row for each in found], "algorithm", "wire")
    write_figure(flag, path, draw_sweep(rows, heading(found)))


def draw_sweep(rows: Sequence[Row], heading: str) -> Any:
    """Draw rows with the keys of ``dear-mpi simulate --json``, one per model, ranks, schedule and fusion.

    The heading marks times as predicted and names the sources of figures; speed-ups are ``over`` this schedule.
    """
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["model"], row["fusion"]), []).append(row)
    ranks, fusions = {row["ranks"] for row in rows}, {row["fusion"] for row in rows}
    fused = f", fusion {label(rows[0]['fusion'])}" * (len(fusions) == 1)
    if len(ranks) > 1:
        draw, columns, inches = draw_curves, WIDEST if fused else len(fusions), CURVES_INCHES
        title, notes = f"Time of an iteration by the number of ranks{fused}", heading
        bound = Line2D([], [], color="black", linewidth=THIN, label="thin: bound")
    else:
        most = max(map(len, cases.values()))
        draw, columns, inches = draw_bars, 1, (BARS_INCHES, PANEL_INCHES + BAR_INCHES * most)
        title = f"Where the time of an iteration goes: {plural(rows[0]['ranks'], 'rank')}{fused}"
        notes = f"{heading}\nbound: the least time that the schedule allows; speed-up: over {BASELINE}"
        bound = upright("bound")
    figure, axes = panels(len(cases), columns=columns, inches=inches, title=title, notes=notes)
    for panel, ((model, fusion), shown) in zip(axes, cases.items(), strict=True):
        draw(panel, shown, max(row["iteration_s"] for row in rows if row["model"] == model) or INSTANT_S)
        panel.set_title(label(model) if fused else f"{label(model)}, fusion {label(fusion)}")
    legend_below(figure, [bound])
    return figure


def draw_curves(axes: Any, rows: Sequence[Row], longest_s: float) -> None:
    ranks = sorted({row["ranks"] for row in rows})
    for number, schedule in enumerate(dict.fromkeys(row["schedule"] for row in rows)):
        line = sorted((row for row in rows if row["schedule"] == schedule), key=lambda row: row["ranks"])
        look = {"color": COLORS[number % len(COLORS)]}
        # Hollow: lines overlap.
        marker = {"marker": MARKERS[number % len(MARKERS)], "markerfacecolor": "none"}
        axes.plot(ranks, [row["iteration_s"] * 1e3 for row in line], label=label(schedule), **look, **marker)
        axes.plot(ranks, [row["bound_s"] * 1e3 for row in line], linewidth=THIN, **look)
    # Jitter makes compute differ by schedule.
    floor = [1e3 * min(row["compute_s"] for row in rows if row["ranks"] == size) for size in ranks]
    axes.fill_between(ranks, floor, color=FLOOR, label="compute")
    scale_by_powers(axes, ranks)
    axes.set(xlabel="ranks", ylabel="ms of an iteration", ylim=(0, ABOVE * longest_s * 1e3))


def draw_bars(axes: Any, rows: Sequence[Row], longest_s: float) -> None:
    """Draw a bar per schedule, the first on top, with room for the longest bar and its text."""
    lines = np.arange(len(rows))
    widths = np.array([split(row) for row in rows]).T  # seconds, by part and line
    begins = np.cumsum(widths, axis=0) - widths
    for (name, color), seconds, begin in zip(PARTS.items(), widths, begins, strict=True):
        named = name if seconds.max() > ROUNDING * longest_s else None
        bars = axes.barh(lines, seconds * 1e3, left=begin * 1e3, height=0.6, color=color, label=named)
        numbers = [short_ms(each) if each > NUMBERED * longest_s else "" for each in seconds]
        over_bounds = {"facecolor": color, "edgecolor": "none", "pad": 1}
        axes.bar_label(bars, numbers, label_type="center", fontsize="small", bbox=over_bounds, zorder=4)
    for line, row, end in zip(lines, rows, widths.sum(axis=0) * 1e3, strict=True):
        said = f" {short_ms(row['iteration_s'])} ms, speed-up {row['speedup_vs_wfbp']:.2f}"
        axes.text(end, line, said, va="center", fontsize="small")
    axes.vlines([row["bound_s"] * 1e3 for row in rows], lines - 0.42, lines + 0.42, color="black")
    axes.set_yticks(lines, [label(row["schedule"]) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="ms of an iteration", xlim=(0, ROOM * longest_s * 1e3))


def split(row: Row) -> tuple[float, float, float]:
    """Split an iteration's seconds into disjoint parts."""
    rest_s = row["iteration_s"] - row["compute_s"] - row["exposed_comm_s"]
    return row["compute_s"], row["exposed_comm_s"], max(0.0, rest_s)
