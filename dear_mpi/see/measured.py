"""Draw ``bench`` rows as time and busbw by size (logarithmic axes), and ``links`` rows as heat maps.

Each collective and number of ranks gets two panels. A line is an algorithm in a run, its band the 95 % interval; a
hollow point has an interval wider than the median. Thin lines are the model, dashed lines the bound. Letters are as
large as in a paper's column. A heat map has senders on the left and receivers below; red is slow.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.reporting.stats import Median
from dear_mpi.reporting.terminal import alike
from dear_mpi.reporting.units import format_hosts, grouped, plural
from dear_mpi.see.figure import COLORS, MARKERS, THIN, label, legend_below, panels, readable

Row: TypeAlias = Mapping[str, Any]
Line: TypeAlias = tuple[str, str]  # its label, and its run
Value: TypeAlias = Callable[[Row, float], float]  # of a row, for a time in us

COLUMN_INCHES, PANEL_INCHES, TEXT_INCHES = 3.5, 2.1, 0.17  # of a paper's column; a panel; a line of notes or legend
POINTS, LETTERS = 7.0, 68  # size of letters; letters of a note in a column
VARIED = ("placement", "dtype", "op", "device", "cadence")  # part of line names if they vary
FEW_DECADES = 1e3  # a shorter axis also has numbers inside its decades
MOST_BEYOND = 10  # the most that an axis extends for a bound
BINARY = {"G": 2**30, "M": 2**20, "K": 2**10, "": 1}
SURE: dict[str, Any] = {"linewidth": 1.2, "markersize": 3.5}
UNSURE: dict[str, Any] = {
    "linestyle": "none",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "label": None,
    "zorder": 3,
}
BAND: dict[str, Any] = {"alpha": 0.2, "linewidth": 0}
DASHES = ("--", ":", "-.")
BOUND: dict[str, Any] = {"color": "0.3", "linewidth": 1.0}
PANELS: dict[str, Value] = {
    "time (us)": lambda row, us: us,
    "busbw (GB/s)": lambda row, us: float(row["busbw_GBps"] * row["p50_us"] / us),
}
ABOUT_BOUND = "bound: alpha + 2 o + beta x the bytes of busbw, as fitted"


def draw_runs(rows: Sequence[Row]) -> Any:
    """Draw rows with the keys of ``bench --json`` and the name of their ``run``.

    Raises a ValueError if no row has a size.
    """
    from matplotlib.figure import Figure

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
    written = len(about) + legend_below(figure, signs(rows, looks), points=POINTS)
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
    """Describe the settings that all rows share, and the drawing."""
    least, most = (each(row["samples"] for row in rows) for each in (min, max))
    where = dict.fromkeys(f"{format_hosts(row['hosts'])}, over {row['backend']}" for row in rows)
    same = [str(rows[0][key]) for key in VARIED if alike(key, rows) and rows[0][key] != "none"]
    samples = str(most) if least == most else f"{least} to {most}"
    told = [", ".join(same), *where, f"medians of {samples} samples, with 95 % intervals"]
    if any(row["bound_us"] for row in rows):
        told.append(ABOUT_BOUND)
    return textwrap.wrap("; ".join(filter(None, told)), letters)


def looks_of(lines: Sequence[Line]) -> dict[Line, dict[str, Any]]:
    """Choose a colour and a marker per line; for several runs, colours by line and markers by run."""
    names, runs = (list(dict.fromkeys(each)) for each in zip(*lines, strict=True))
    colored, marked = names if len(names) > 1 else runs, runs if len(runs) > 1 else names
    return {
        (name, run): {
            "color": COLORS[colored.index(name if len(names) > 1 else run) % len(COLORS)],
            "marker": MARKERS[marked.index(run if len(runs) > 1 else name) % len(MARKERS)],
            "label": None if len(names) > 1 and len(runs) > 1 else name if len(runs) == 1 else f"{name}, {run}",
        }
        for name in names
        for run in runs
    }


def draw_panel(
    axes: Any, case: Mapping[Line, Sequence[Row]], value: Value, looks: Mapping[Line, Any], **words: str
) -> None:
    """Draw a collective's lines on axes that fit the measurements, and the bound if it is close."""
    from matplotlib.ticker import LogLocator

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
    axes.tick_params(axis="x", labelsize=POINTS - 1)  # so that 11 sizes do not overlap
    axes.grid(color="0.9", linewidth=0.5)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_fontsize(POINTS)


def draw_line(axes: Any, rows: Sequence[Row], value: Value, look: Mapping[str, Any]) -> None:
    """Draw an algorithm's medians in a run, with their intervals, and the model."""
    sizes, middle = [row["bytes"] for row in rows], [value(row, row["p50_us"]) for row in rows]
    low, high = ([value(row, row[end] or row["p50_us"]) for row in rows] for end in ("ci_low_us", "ci_high_us"))
    axes.fill_between(sizes, low, high, color=look["color"], **BAND)
    if len(rows) == 1:  # a band without width
        axes.vlines(sizes, low, high, color=look["color"], linewidth=THIN)
    axes.plot(sizes, middle, **look, **SURE)
    hollow = [(size, median) for size, median, row in zip(sizes, middle, rows, strict=True) if is_noisy(row)]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), **{**look, **UNSURE})
    modelled = [row for row in rows if row["model_us"]]
    model = [value(row, row["model_us"]) for row in modelled]
    axes.plot([row["bytes"] for row in modelled], model, color=look["color"], linewidth=THIN)


def signs(rows: Sequence[Row], looks: Mapping[Line, Any]) -> list[Any]:
    """Return legend signs that no panel labels; for several lines in several runs, also of lines and runs."""
    from matplotlib.lines import Line2D

    found: dict[str, dict[str, Any]] = {}
    if any(look["label"] is None for look in looks.values()):
        found |= {name: {"color": look["color"], **SURE} for (name, _), look in looks.items()}
        found |= {run: {"marker": look["marker"], "linestyle": "none", **SURE} for (_, run), look in looks.items()}
    if any(row["model_us"] for row in rows):
        found["thin: model"] = {"linewidth": THIN}
    if any(is_noisy(row) for row in rows):
        found["hollow: too noisy"] = UNSURE | {"marker": "o"}
    return [Line2D([], [], **{"color": "black", **look, "label": name}) for name, look in found.items()]


def is_noisy(row: Row) -> bool:
    return Median(row["p50_us"], row["ci_low_us"], row["ci_high_us"]).is_noisy


def size_text(nbytes: float) -> str:
    """Format a size for an axis.

    >>> size_text(4), size_text(1 << 18), size_text(1536), size_text(1000)
    ('4', '256K', '1.5K', '1000')
    """
    letter, unit = next((letter, unit) for letter, unit in BINARY.items() if nbytes >= unit)
    return f"{nbytes / unit:.3g}{letter}" if letter else f"{nbytes:g}"


MAP_INCHES, CELL_INCHES = 4.6, 0.5
MOST_NUMBERED = 16  # ranks: numbers in smaller cells are illegible
MOST_TICKS, TICKS = 16, 5  # on an axis; on a colour scale
LOG_FROM = 5.0  # times the least: larger ratios use a logarithmic colour scale
BORDER = {"color": "black", "linewidth": 2.0}
DARK = 0.6  # share of the colour scale, from here on numbers are white

# A row's key, its panel's title, its colours.
MAPS = (("latency_us", "latency (us)", "YlOrRd"), ("GBps", "one way (GB/s)", "YlOrRd_r"))


def draw_heat_maps(rows: Sequence[Mapping[str, Any]], hosts: Sequence[str], notes: str) -> Any:
    """Draw rows with the keys of ``dear-mpi links --json``, one for each direction of each pair.

    ``hosts`` names each rank's host; lines separate hosts.
    """
    size = len(hosts)
    inches = max(MAP_INCHES, CELL_INCHES * min(size, MOST_NUMBERED) + 1.6)
    title = f"Links between {size} ranks"
    notes += (
        "\nlatency: half of a round trip; one way: a stream until a short answer is back; black lines: between hosts"
    )
    figure, axes = panels(len(MAPS), columns=2, inches=(inches, inches - 0.9), title=title, notes=notes)
    for panel, (key, name, colors) in zip(axes, MAPS, strict=True):
        values = np.full((size, size), np.nan)
        for row in rows:
            values[row["source"], row["dest"]] = row[key]
        draw_map(figure, panel, values, colors)
        panel.set_title(name)
        label_ranks(panel, hosts)
    return figure


def draw_map(figure: Any, axes: Any, values: Any, colors: str) -> None:
    """Draw the cells, with numbers if they fit."""
    from matplotlib.colors import LogNorm, Normalize

    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    wide = 0 < least * LOG_FROM < most
    norm = LogNorm(least, most) if wide else Normalize(least, most)
    image = axes.imshow(values, cmap=colors, norm=norm)
    ticks = np.geomspace(least, most, TICKS) if wide else np.linspace(least, most, TICKS)
    figure.colorbar(image, ax=axes, shrink=0.8, ticks=ticks, format="%.3g").minorticks_off()
    if len(values) > MOST_NUMBERED:
        return
    for source, dest in zip(*np.nonzero(~np.isnan(values)), strict=True):
        value = values[source, dest]
        red = image.cmap(norm(value))
        light = 0.3 * red[0] + 0.6 * red[1] + 0.1 * red[2]
        look = {"color": "black" if light > 1 - DARK else "white", "size": 8, "ha": "center", "va": "center"}
        axes.text(dest, source, f"{value:.3g}", **look)


def label_ranks(axes: Any, hosts: Sequence[str]) -> None:
    """Label the ranks at both axes, and draw the borders of hosts."""
    size = len(hosts)
    ticks = range(0, size, -(-size // MOST_TICKS))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    for rank in range(1, size):
        if hosts[rank] != hosts[rank - 1]:
            axes.axhline(rank - 0.5, **BORDER)
            axes.axvline(rank - 0.5, **BORDER)
