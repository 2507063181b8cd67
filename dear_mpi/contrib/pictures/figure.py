import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from dear_mpi.reporting.files import printable, replacing

DOTS_PER_INCH = 150  # of a PNG
BELOW_INCHES = 0.65  # for a legend of two lines
LEAST_INCHES = 8.0  # for the title
MARGIN_INCHES = 0.1
SIGN_INCHES, LETTER_INCHES = 0.7, 0.085  # in the legend
LEGEND_POINTS = 10.0  # of a legend letter
APART = 0.1  # of an axis: closer numbers overlap
INCH = 72  # points
INSTANT_S = 1e-3  # for iterations without duration
LINE, WIDTH = 1.35, 0.68  # in letter heights: spacing; a letter's width
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito, without yellow
MARKERS = "os^Dv"
THIN = 0.7  # line width in points: models and bounds
TITLE, NOTES = {"size": 14, "weight": 700}, {"size": 9, "weight": 400}  # in points


def write_figure(flag: str, path: Path, figure: Any) -> None:
    """Write a matplotlib figure in the format of the file's ending. Raises a ValueError if it cannot.

    Texts stay literal: no formulas (two ``$`` in a file name), no characters that fonts lack. An SVG has no date and no
    random names: equal figures give equal files.
    """
    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text()))
        text.set_parse_math(False)
    kind = path.suffix.lower().removeprefix(".")
    undated = {"metadata": {"Date": None}} if kind == "svg" else {}
    with replacing(flag, path) as file, matplotlib.rc_context({"svg.hashsalt": "dear-mpi"}):
        figure.savefig(file, dpi=DOTS_PER_INCH, format=kind, **undated)


def panels(
    count: int, *, columns: int, inches: tuple[float, float], title: str, notes: str = ""
) -> tuple[Any, list[Any]]:
    """Return a figure with room for a legend, and its panels line by line.

    Args:
        columns: the most panels in a line.
        inches: width and height of a panel, with its ticks.
        title, notes: texts above all panels; long lines are wrapped.
    """
    columns = min(count, columns)
    lines, width = -(-count // columns), max(LEAST_INCHES, inches[0] * columns)
    written = [
        (line, font)
        for font, text in ((TITLE, title), (NOTES, notes))
        for paragraph in text.splitlines()
        for line in textwrap.wrap(paragraph, int(width * INCH / (WIDTH * font["size"])))
    ]
    above = MARGIN_INCHES + sum(LINE * font["size"] for _, font in written) / INCH
    height = above + inches[1] * lines + BELOW_INCHES
    figure = Figure(figsize=(width, height), layout="constrained")
    top = height - MARGIN_INCHES
    for line, font in written:
        figure.text(0.5, top / height, line, ha="center", va="top", **font)  # type: ignore[arg-type]
        top -= LINE * font["size"] / INCH
    space = {"rect": (0, 0, 1, 1 - above / height), "w_pad": 0.08, "h_pad": 0.08}
    figure.get_layout_engine().set(**space)  # type: ignore[union-attr]
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.axis("off")
    return figure, axes[:count]


def legend_below(figure: Any, others: Sequence[Any] = (), *, points: float = LEGEND_POINTS) -> int:
    """Add a legend below all panels, one entry per name, and ``others``. Returns its number of lines."""
    handles = [handle for axes in figure.axes for handle in axes.get_legend_handles_labels()[0]]
    named = {handle.get_label(): handle for handle in (*handles, *others)}
    widest = (SIGN_INCHES + LETTER_INCHES * max(map(len, named))) * points / LEGEND_POINTS
    columns = max(1, int(figure.get_figwidth() / widest))
    look = {"ncols": columns, "frameon": False, "fontsize": points}
    figure.legend(handles=list(named.values()), loc="outside lower center", **look)
    return -(-len(named) // columns)


def upright(label: str) -> Any:
    """Return the legend sign of a vertical black line."""
    return Line2D([], [], color="black", marker="|", linestyle="none", markersize=12, markeredgewidth=1.5, label=label)


def scale_by_powers(axes: Any, numbers: Sequence[float]) -> None:
    """Scale the horizontal axis by powers of 2, with ticks at these ascending numbers."""
    axes.set_xscale("log", base=2)
    shown = readable(numbers)
    axes.set_xticks(shown, list(map(str, shown)))
    axes.minorticks_off()


def readable(numbers: Sequence[float]) -> list[float]:
    """Return the numbers that are not too close to their predecessor on a scale of powers of 2."""
    least = APART * math.log2(numbers[-1] / numbers[0])
    shown = [numbers[0]]
    for number in numbers[1:]:
        if math.log2(number / shown[-1]) >= least:
            shown.append(number)
    return shown


def short_ms(seconds: float) -> str:
    """
    >>> short_ms(1.2345), short_ms(0.31234), short_ms(4.2e-5), short_ms(0)
    ('1234', '312.3', '0.042', '0')
    """
    in_ms = seconds * 1e3
    if in_ms < 1:
        return f"{in_ms:.2g}"
    return f"{in_ms:.1f}" if in_ms < 1000 else f"{in_ms:.0f}"
