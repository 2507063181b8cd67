"""Draw rows of ``dear-mpi simulate`` and ``compare``, with a panel for each model and each fusion.

Over several numbers of ranks it draws curves: a thick line per schedule, a thin one for its bound, and compute as a
grey floor. Exposed communication and updates are between floor and line. Otherwise it draws bars with the parts of an
iteration. All panels of a model share one scale.

``draw_comparison`` fits a paper's column: a panel per fusion, a bar per schedule with the parts of an iteration and the
95 % interval of its median. A black line is the bound.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dear_mpi.reporting.terminal import alike
from dear_mpi.reporting.units import format_hosts, plural
from dear_mpi.see.figure import (
    COLORS,
    INSTANT_S,
    MARGIN_INCHES,
    MARKERS,
    THIN,
    label,
    legend_below,
    panels,
    scale_by_powers,
    short_ms,
    upright,
)
from dear_mpi.training.schedules import BASELINE

Row = Mapping[str, Any]

WIDEST = 3  # models in a line
CURVES_INCHES = 3.6, 3.0
FLOOR = "0.88"
ABOVE = 1.05  # of the longest iteration

BARS_INCHES, PANEL_INCHES, BAR_INCHES = 8.0, 1.0, 0.42
PARTS = {"compute": "#999999", "exposed communication": "#D55E00", "updates and the rest": "#56B4E9"}
ROOM = 1.36  # of the axis, for numbers after the bars
NUMBERED = 0.09  # of the longest bar: a shorter part shows no number
ROUNDING = 1e-9  # of an iteration
UNCLEAR = ("too noisy", "cannot tell")


def draw_sweep(rows: Sequence[Row], heading: str) -> Any:
    """Draw rows with the keys of ``dear-mpi simulate --json``, one per model, ranks, schedule and fusion.

    The heading, below the title, marks times as predicted and names the sources of figures; speed-ups are ``over`` this
    schedule.
    """
    from matplotlib.lines import Line2D

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


def named(rows: Sequence[Row], *keys: str) -> list[dict[str, Any]]:
    """Add the values of these keys to the schedule names if they vary."""
    several = ["schedule", *(key for key in keys if not alike(key, rows))]
    return [{**row, "schedule": ", ".join(str(row[key]) for key in several)} for row in rows]


def draw_curves(axes: Any, rows: Sequence[Row], longest_s: float) -> None:
    """Draw an iteration's time by the number of ranks, on an axis up to the longest one."""
    ranks = sorted({row["ranks"] for row in rows})
    for number, schedule in enumerate(dict.fromkeys(row["schedule"] for row in rows)):
        line = sorted((row for row in rows if row["schedule"] == schedule), key=lambda row: row["ranks"])
        look = {"color": COLORS[number % len(COLORS)]}
        # Hollow markers keep overlapping lines visible.
        marker = {"marker": MARKERS[number % len(MARKERS)], "markerfacecolor": "none"}
        axes.plot(ranks, [row["iteration_s"] * 1e3 for row in line], label=label(schedule), **look, **marker)
        axes.plot(ranks, [row["bound_s"] * 1e3 for row in line], linewidth=THIN, **look)
    # The compute that no schedule avoids; jitter makes it differ by schedule.
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
        axes.text(end, line, f" {short_ms(row['iteration_s'])} ms, {gain(row)}", va="center", fontsize="small")
    axes.vlines([row["bound_s"] * 1e3 for row in rows], lines - 0.42, lines + 0.42, color="black")
    axes.set_yticks(lines, [label(row["schedule"]) for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="ms of an iteration", xlim=(0, ROOM * longest_s * 1e3))


def split(row: Row) -> tuple[float, float, float]:
    """Split an iteration's seconds into disjoint parts."""
    rest_s = row["iteration_s"] - row["compute_s"] - row["exposed_comm_s"]
    return row["compute_s"], row["exposed_comm_s"], max(0.0, rest_s)


def gain(row: Row) -> str:
    """Describe the speed-up, or only that the measurement is unclear.

    >>> gain({"speedup_vs_wfbp": 1.25}), gain({"speedup_vs_wfbp": 0.8, "verdict": "too noisy"})
    ('speed-up 1.25', 'too noisy')
    """
    verdict = row.get("verdict", "faster")
    return verdict if verdict in UNCLEAR else f"speed-up {row['speedup_vs_wfbp']:.2f}"


COLUMN_INCHES = 3.5  # of a paper with two columns
ROW_INCHES, GROUP_INCHES, REST_INCHES = 0.3, 0.5, 0.75  # of a bar; a panel's title and numbers; title and legend
POINTS, SMALL = 8.0, 7.0
LETTERS, NOTE_LETTERS = 18, 68  # in a line of a schedule's name; of the notes
MEASURED_ROOM = 1.75  # of the axis, for the numbers after the bars


def draw_comparison(rows: Sequence[Row], algorithm: str) -> Any:
    """Draw measured rows; ``algorithm`` describes the collectives' algorithm."""
    from matplotlib.figure import Figure

    first, rows = rows[0], named(rows, "wire")
    groups = [list(group) for _, group in groupby(rows, lambda row: row["asked_fusion"])]
    where = f"{first['device']}, {format_hosts(first['hosts'])}, {algorithm} over {first['transport']}"
    notes = textwrap.wrap(f"Measured: medians with 95 % intervals; {where}", NOTE_LETTERS)
    height = REST_INCHES + sum(GROUP_INCHES + ROW_INCHES * len(group) for group in groups)
    above = MARGIN_INCHES + (1.4 * POINTS + 1.3 * SMALL * len(notes)) / 72
    figure = Figure(figsize=(COLUMN_INCHES, height + above))
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - above / (height + above)))
    title = (
        f"{label(first['model'])}, fusion {label(first['asked_fusion'])}" if len(groups) == 1 else label(first["model"])
    )
    figure.text(
        0.5, 1 - MARGIN_INCHES / 2 / (height + above), title, ha="center", va="top", size=POINTS + 1, weight=700
    )
    figure.text(0.5, 1 - (above - 0.02) / (height + above), "\n".join(notes), ha="center", va="bottom", size=SMALL - 1)
    longest_s = max(row["median_high_s"] for row in rows)
    for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False).flat, groups, strict=True):
        draw_measured_bars(axes, group, longest_s)
        if len(groups) > 1:
            axes.set_title(f"fusion {label(group[0]['asked_fusion'])}", size=POINTS)
    axes.set_xlabel(f"ms of an iteration (speed-up over {label(first['schedule'])})", size=POINTS)
    handles = [*axes.get_legend_handles_labels()[0], upright("bound")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL)
    return figure


def draw_measured_bars(axes: Any, rows: Sequence[Row], longest_s: float) -> None:
    """Draw a bar per row, the first on top."""
    for line, row in enumerate(rows):
        begin_s, median_s = 0.0, row["median_s"]
        parts = split({**row, "iteration_s": median_s})
        for (name, color), seconds in zip(PARTS.items(), parts, strict=True):
            shown = name if line == 0 else None
            axes.barh(line, 1e3 * seconds, left=1e3 * begin_s, height=0.6, color=color, label=shown)
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
    axes.set(xlim=(0, MEASURED_ROOM * 1e3 * longest_s or 1.0))
