"""The rows of ``dear-mpi compare`` as a picture for a column of a paper: panels of fusions, bars of schedules.

A bar has the parts of an iteration, and at its end the 95 % interval of its median. A black line is the bound.
"""

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dear_mpi.reporting.units import format_hosts
from dear_mpi.see.figure import MARGIN_INCHES, label, short_ms, upright
from dear_mpi.see.sweep import PARTS, UNCLEAR, Row, named, split

COLUMN_INCHES = 3.5  # of a paper with two columns
BAR_INCHES, PANEL_INCHES, REST_INCHES = 0.3, 0.5, 0.75  # of a bar; a panel's title and numbers; title and legend
POINTS, SMALL = 8.0, 7.0
LETTERS, NOTE_LETTERS = 18, 68  # in a line of a schedule's name; of the notes
ROOM = 1.75  # of the axis, for the numbers after the bars


def draw_comparison(rows: Sequence[Row], algorithm: str) -> Any:
    """A figure of measured rows; ``algorithm`` is the text for what carried them."""
    from matplotlib.figure import Figure

    first, rows = rows[0], named(rows, "wire")
    groups = [list(group) for _, group in groupby(rows, lambda row: row["asked_fusion"])]
    where = f"{first['device']}, {format_hosts(first['hosts'])}, {algorithm} over {first['transport']}"
    notes = textwrap.wrap(f"Measured: medians with 95 % intervals; {where}", NOTE_LETTERS)
    height = REST_INCHES + sum(PANEL_INCHES + BAR_INCHES * len(group) for group in groups)
    above = MARGIN_INCHES + (1.4 * POINTS + 1.3 * SMALL * len(notes)) / 72
    figure = Figure(figsize=(COLUMN_INCHES, height + above), layout="constrained")
    space = {"rect": (0, 0, 1, 1 - above / (height + above))}
    figure.get_layout_engine().set(**space)  # type: ignore[union-attr]
    title = (
        f"{label(first['model'])}, fusion {label(first['asked_fusion'])}" if len(groups) == 1 else label(first["model"])
    )
    figure.text(
        0.5, 1 - MARGIN_INCHES / 2 / (height + above), title, ha="center", va="top", size=POINTS + 1, weight=700
    )
    figure.text(0.5, 1 - (above - 0.02) / (height + above), "\n".join(notes), ha="center", va="bottom", size=SMALL - 1)
    longest_s = max(row["median_high_s"] for row in rows)
    for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False).flat, groups, strict=True):
        draw_bars(axes, group, longest_s)
        if len(groups) > 1:
            axes.set_title(f"fusion {label(group[0]['asked_fusion'])}", size=POINTS)
    axes.set_xlabel(f"ms of an iteration (speed-up over {label(first['schedule'])})", size=POINTS)
    handles = [*axes.get_legend_handles_labels()[0], upright("bound")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL)
    return figure


def draw_bars(axes: Any, rows: Sequence[Row], longest_s: float) -> None:
    """A bar for each row, the first one on top."""
    for line, row in enumerate(rows):
        begin_s, median_s = 0.0, row["median_s"]
        parts = split({**row, "iteration_s": median_s})
        for (name, color), seconds in zip(PARTS.items(), parts, strict=True):
            named = name if line == 0 else None
            axes.barh(line, 1e3 * seconds, left=1e3 * begin_s, height=0.6, color=color, label=named)
            begin_s += seconds
        reach = [[1e3 * max(0.0, median_s - row["median_low_s"])], [1e3 * max(0.0, row["median_high_s"] - median_s)]]
        axes.errorbar(1e3 * median_s, line, xerr=reach, color="black", capsize=2.5, linewidth=0.9, zorder=4)
        clear = row["verdict"] not in UNCLEAR
        said = f"{row['speedup']:.2f}x" if clear else row["verdict"]
        end_s = max(begin_s, row["median_high_s"])
        axes.text(1e3 * end_s, line, f"  {short_ms(median_s)}, {said}", va="center", size=SMALL)
    bounds = [1e3 * row["bound_s"] for row in rows]
    axes.vlines(
        bounds, [line - 0.42 for line in range(len(rows))], [line + 0.42 for line in range(len(rows))], color="black"
    )
    names = [textwrap.fill(label(row["schedule"]), LETTERS) for row in rows]
    axes.set_yticks(range(len(rows)), names, size=SMALL)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.invert_yaxis()
    axes.set(xlim=(0, ROOM * 1e3 * longest_s or 1.0))
