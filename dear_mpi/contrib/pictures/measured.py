"""Draw ``bench`` rows as time and busbw by size, on logarithmic axes: two panels for each collective and number of
ranks.

A line is an algorithm in a run, its band the 95 % interval; thin lines are the model, dashed ones the bound.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from dear_mpi.bench.saved import Run
from dear_mpi.contrib.look import label
from dear_mpi.contrib.pictures.figure import COLORS, MARKERS, THIN, legend_below, readable, write_figure
from dear_mpi.reporting.terminal import alike
from dear_mpi.reporting.units import format_hosts, grouped, plural

Row: TypeAlias = Mapping[str, Any]
Line: TypeAlias = tuple[str, str]  # its label, and its run
Value: TypeAlias = Callable[[Row, float], float]  # of a row, for a time in us

COLUMN_INCHES, PANEL_INCHES, TEXT_INCHES = 3.5, 2.1, 0.17  # of a paper's column
POINTS, LETTERS = 7.0, 68  # of letters; in a line
VARIED = ("placement", "dtype", "op", "device", "cadence")  # in line names if they vary
FEW_DECADES = 1e3  # shorter axes also have numbers inside decades
MOST_BEYOND = 10  # of an axis, for a bound
BINARY = {"G": 2**30, "M": 2**20, "K": 2**10, "": 1}
SURE: dict[str, Any] = {"linewidth": 1.2, "markersize": 3.5}
BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0}
DASHES = ("--", ":", "-.")
BOUND: dict[str, Any] = {"color": "0.3", "linewidth": 1.0}
PANELS: dict[str, Value] = {
    "time (us)": lambda row, us: us,
    "busbw (GB/s)": lambda row, us: float(row["busbw_GBps"] * row["p50_us"] / us),
}
ABOUT_BOUND = "bound: alpha + 2 o + beta x the bytes of busbw, as fitted"


def write_runs(flag: str, path: Path, *runs: Run) -> None:
    rows = [asdict(row) | {"run": Path(run.name).stem} for run in runs for row in run.rows]
    write_figure(flag, path, draw_runs(rows))


def draw_runs(rows: Sequence[Row]) -> Any:
    """Draw rows with the keys of ``bench --json`` and the name of their ``run``. ValueError: no row has a size."""
    rows = [row for row in rows if row["bytes"]]
    if not rows:
        raise ValueError("there is nothing to draw by size: no row has one")
    cases: dict[str, dict[Line, list[Row]]] = {}
    for title, its in grouped(rows, lambda row: f"{row['collective']}, {plural(row['ranks'], 'rank')}").items():
        ordered = sorted(its, key=lambda row: int(row["bytes"]))
        cases[title] = grouped(ordered, line_in(its))
    columns = min(2, len(cases))
    lines = 2 * len(cases) // columns
    figure = Figure(figsize=(columns * COLUMN_INCHES, 1), layout="constrained")
    looks = looks_of([line for case in cases.values() for line in case])
    about = notes(rows, columns * LETTERS)
    figure.suptitle("\n".join(about), fontsize=POINTS)
    panels = iter(figure.subplots(lines, columns, squeeze=False).flat)
    for title, case in cases.items():
        for name, value in PANELS.items():
            draw_panel(next(panels), case, value, looks, title=title, ylabel=name)
            title = ""  # of both panels
    modelled = any(row["model_us"] for row in rows)
    signs = [Line2D([], [], color="black", linewidth=THIN, label="thin: model")] if modelled else []
    written = len(about) + legend_below(figure, signs, points=POINTS)
    figure.set_figheight(lines * PANEL_INCHES + written * TEXT_INCHES)
    return figure


def line_in(rows: Sequence[Row]) -> Callable[[Row], Line]:
    """Map each row to its line: the algorithm, with its distinguishing settings, and the run."""
    varied = [key for key in VARIED if not alike(key, rows)]
    cuts = grouped(list({(row["algorithm"], row["segment_bytes"]) for row in rows}), lambda each: each[0])

    def line(row: Row) -> Line:
        segment = [f"segment {size_text(row['segment_bytes'])}"] * (len(cuts[row["algorithm"]]) > 1)
        return ", ".join([label(row["algorithm"]), *(str(row[key]) for key in varied), *segment]), row["run"]

    return line


def notes(rows: Sequence[Row], letters: int) -> list[str]:
    least, most = (each(row["samples"] for row in rows) for each in (min, max))
    where = dict.fromkeys(f"{format_hosts(row['hosts'])}, over {row['backend']}" for row in rows)
    same = [str(rows[0][key]) for key in VARIED if alike(key, rows) and rows[0][key] != "none"]
    samples = str(most) if least == most else f"{least} to {most}"
    told = [", ".join(same), *where, f"medians of {samples} samples, with 95 % intervals"]
    if any(row["bound_us"] for row in rows):
        told.append(ABOUT_BOUND)
    return textwrap.wrap("; ".join(filter(None, told)), letters)


def looks_of(lines: Sequence[Line]) -> dict[Line, dict[str, Any]]:
    """Choose colours by algorithm and markers by run; the other way round for one algorithm."""
    names, runs = (list(dict.fromkeys(each)) for each in zip(*lines, strict=True))
    colored = 0 if len(names) > 1 else 1
    return {
        line: {
            "color": COLORS[(names, runs)[colored].index(line[colored]) % len(COLORS)],
            "marker": MARKERS[(runs, names)[colored].index(line[1 - colored]) % len(MARKERS)],
            "label": line[0] if len(runs) == 1 else ", ".join(line),
        }
        for line in lines
    }


def draw_panel(
    axes: Any, case: Mapping[Line, Sequence[Row]], value: Value, looks: Mapping[Line, Any], **words: str
) -> None:
    """Draw a collective's lines on axes that fit the measurements, and the bound if it is close."""
    case = {line: [row for row in rows if value(row, 1.0) > 0] for line, rows in case.items()}
    if not any(case.values()):  # one rank, or a collective without data
        axes.axis("off")
        return
    for line, rows in case.items():
        draw_line(axes, rows, value, looks[line])
    runs = list(dict.fromkeys(run for _, run in looks))
    axes.set(xlabel="size (bytes; K, M, G: binary)", xscale="log", yscale="log", **words)
    low, high = axes.get_ylim()
    for number, run in enumerate(runs):
        bounds = {row["bytes"]: row for (_, its), rows in case.items() if its == run for row in rows if row["bound_us"]}
        if bounds:
            name = f"bound, {run}" if len(runs) > 1 else "dashed: bound"
            look = {"linestyle": DASHES[number % len(DASHES)], "label": name, **BOUND}
            axes.plot(list(bounds), [value(row, row["bound_us"]) for row in bounds.values()], **look)
    sizes = readable(sorted({row["bytes"] for rows in case.values() for row in rows}))
    axes.set_xticks(sizes, list(map(size_text, sizes)))
    reached = axes.get_ylim()
    low, high = max(reached[0], low / MOST_BEYOND), min(reached[1], high * MOST_BEYOND)
    axes.set_ylim(low, high)
    if high / low < FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.tick_params(labelsize=POINTS)
    axes.tick_params(axis="x", labelsize=POINTS - 1)  # fits 11 sizes
    axes.grid(color="0.9", linewidth=0.5)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(POINTS)


def draw_line(axes: Any, rows: Sequence[Row], value: Value, look: Mapping[str, Any]) -> None:
    """Draw an algorithm's medians in a run, their intervals, and the model."""
    sizes, middle = [row["bytes"] for row in rows], [value(row, row["p50_us"]) for row in rows]
    low, high = ([value(row, row[end] or row["p50_us"]) for row in rows] for end in ("ci_low_us", "ci_high_us"))
    axes.fill_between(sizes, low, high, color=look["color"], **BAND)
    if len(rows) == 1:  # a band without width
        axes.vlines(sizes, low, high, color=look["color"], linewidth=THIN)
    axes.plot(sizes, middle, **look, **SURE)
    modelled = [row for row in rows if row["model_us"]]
    model = [value(row, row["model_us"]) for row in modelled]
    axes.plot([row["bytes"] for row in modelled], model, color=look["color"], linewidth=THIN)


def size_text(nbytes: float) -> str:
    """
    >>> size_text(4), size_text(1 << 18), size_text(1536), size_text(1000)
    ('4', '256K', '1.5K', '1000')
    """
    letter, unit = next((letter, unit) for letter, unit in BINARY.items() if nbytes >= unit)
    return f"{nbytes / unit:.3g}{letter}" if letter else f"{nbytes:g}"
