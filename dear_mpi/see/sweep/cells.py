"""Tables of cells with numbers in them, whose colours depend on these numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import BELOW_INCHES, LETTER_INCHES, WIDEST, label, panels, short_ms
from dear_mpi.see.sweep.sweep import Sweep
from dear_mpi.training.schedules import BASELINE

CELL_INCHES = 0.68, 0.36  # at least, with a number in it
AROUND_INCHES = 0.6, 0.9  # beside the cells and above and below them, but for the names of lines
ROUNDING = 1e-9
BRIGHT = 0.45  # of a cell: black letters can be read on it
GAP_INCHES = 0.1  # between the panels and the scale

LONGER = "Blues"
LIGHTEST = 0.03  # of the span, how far below the shortest time the scale begins: a white cell looks empty
ROOT = 0.5  # of the distance from there: one time that is far longer leaves shades for the others
LEAST_SPAN = 0.5  # of the shortest time, that the scale reaches at least: times that hardly differ look alike
ABOUT_TIMES = "ms of an iteration; darker: longer than others of this model; in a frame: the shortest"

FASTER = "PuOr"  # can be told apart by all readers, and is white in the middle
PALE = 1.6  # how many times as far the colours reach: black frames are seen on them
LEAST_LIMIT = 1.05  # of the scale: what differs by less stays pale
ABOUT_SPEEDUPS = (
    f"speed-up over {BASELINE} with the same fusion: above 1, violet, faster; below 1, orange, slower\n"
    "in a frame: the fusion with the shortest iteration on this number of ranks"
)


def draw_times(sweep: Sweep, heading: str) -> Any:
    """What an iteration takes by fusion and schedule, on one number of ranks; a panel for each model."""
    from matplotlib.colors import PowerNorm

    figure, axes = panels(
        len(sweep.models),
        inches=inches_of(sweep.fusions, sweep.schedules),
        title=f"Time of an iteration by fusion and schedule, {plural(sweep.ranks[0], 'rank')}",
        notes=f"{heading}\n{ABOUT_TIMES}",
    )
    for panel, model in zip(axes, sweep.models, strict=True):
        seconds = sweep.table("iteration_s", "fusion", "schedule", model=model)
        least = seconds.min()
        span = max(np.ptp(seconds), LEAST_SPAN * least) or 1
        shades = {"cmap": LONGER, "norm": PowerNorm(ROOT, least - LIGHTEST * span, least + span)}
        names = sweep.fusions, sweep.schedules
        draw_cells(panel, seconds, *names, text=short_ms, framed=is_least(seconds), shades=shades)
        panel.set(title=label(model), xlabel="schedule", ylabel="fusion")
    return figure


def draw_speedups(sweep: Sweep, heading: str) -> Any:
    """The speed-up over wfbp by ranks and fusion; a panel for each model and each other schedule."""
    from matplotlib.colors import LogNorm

    schedules = [schedule for schedule in sweep.schedules if schedule != BASELINE]
    cases = [{"model": model, "schedule": schedule} for model in sweep.models for schedule in schedules]
    figure, axes = panels(
        len(cases),
        columns=WIDEST if len(schedules) == 1 else len(schedules),
        inches=inches_of(sweep.ranks, sweep.fusions),
        below=BELOW_INCHES,
        title=f"Speed-up over {BASELINE} by ranks and fusion",
        notes=f"{heading}\n{ABOUT_SPEEDUPS}",
    )
    found = [sweep.table("speedup_vs_wfbp", "ranks", "fusion", **case) for case in cases]
    limit = max(LEAST_LIMIT, np.max(found), 1 / np.min(found))
    shades = {"cmap": FASTER, "norm": LogNorm(limit**-PALE, limit**PALE)}  # as far from 1 where twice or half as fast
    for panel, case, speedups in zip(axes, cases, found, strict=True):
        framed = is_least(sweep.table("iteration_s", "ranks", "fusion", **case), axis=1)
        names = sweep.ranks, sweep.fusions
        cells = draw_cells(panel, speedups, *names, text="{:.2f}".format, framed=framed, shades=shades)
        panel.set(title=", ".join(map(label, case.values())), xlabel="fusion", ylabel="ranks")
    pad = GAP_INCHES / figure.get_figheight()
    scale = figure.colorbar(cells, ax=axes, location="bottom", shrink=0.5, aspect=40, pad=pad)
    scale.set_ticks([1 / limit, 1, limit], labels=[f"{each:.2f}" for each in (1 / limit, 1, limit)])
    scale.minorticks_off()
    scale.ax.set_xlim(1 / limit, limit)
    return figure


def draw_cells(
    axes: Any,
    values: Array,
    lines: Sequence[object],
    columns: Sequence[object],
    *,
    text: Callable[[float], str],
    framed: Array,
    shades: Any,
) -> Any:
    """Draw a table into a panel, the first line on top; the cells, for a bar of their colours.

    Args:
        lines, columns: names.
        text: of a value, in its cell.
        framed: for each cell whether it has a frame.
        shades: a colour map of matplotlib, and the norm from values to 0..1, a point of that map.
    """
    from matplotlib.patches import Rectangle

    cells = axes.pcolormesh(values, edgecolors="white", linewidth=1.5, **shades)
    for (line, column), value in np.ndenumerate(values):
        red, green, blue, _ = cells.cmap(cells.norm(value))
        color = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > BRIGHT else "white"
        axes.text(column + 0.5, line + 0.5, text(value), ha="center", va="center", fontsize="small", color=color)
        if framed[line, column]:
            corner = column + 0.02, line + 0.04
            axes.add_patch(Rectangle(corner, 0.96, 0.92, fill=False, edgecolor="black", linewidth=1.8))
    axes.set_xticks(np.arange(len(columns)) + 0.5, list(map(label, columns)))
    axes.set_yticks(np.arange(len(lines)) + 0.5, list(map(label, lines)))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return cells


def inches_of(lines: Sequence[object], columns: Sequence[object]) -> tuple[float, float]:
    """Width and height of a panel that can be read, with names around and a title above."""
    (wide, high), (beside, above) = CELL_INCHES, AROUND_INCHES
    longest, widest = (LETTER_INCHES * max(len(label(name)) for name in names) for names in (lines, columns))
    return beside + longest + len(columns) * max(wide, widest + 0.1), above + len(lines) * high


def is_least(values: Array, axis: int | None = None) -> Array:
    """For each value whether it is the least, or only rounding makes it differ; the least along an axis, or of all.

    >>> is_least(np.array([[3.0, 2.0], [2.0, 4.0]])).tolist()
    [[False, True], [True, False]]
    """
    least: Array = values.min(axis=axis, keepdims=True)
    return values <= least * (1 + ROUNDING)
