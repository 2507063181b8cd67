"""Panels side by side under a title, as all pictures of a sweep have them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WIDEST = 3  # panels side by side
BELOW_INCHES = 0.45  # for a legend or a scale
LEAST_INCHES = 8.0  # for the title
STRETCH = 1.6  # how much wider than it has to be a panel becomes under a wide title
MARGIN_INCHES = 0.1
SIGN_INCHES, LETTER_INCHES = 0.7, 0.085  # of a name in a legend; of a letter there and at an axis
INCH = 72  # points


@dataclass(frozen=True)
class Font:
    """Letters of a title: their height in points, and their width as a part of it, rather too wide."""

    points: float
    weight: str
    width: float

    @property
    def line_inches(self) -> float:
        """From a line to the next one."""
        return 1.35 * self.points / INCH

    def wrapped(self, text: str, inches: float) -> Iterator[str]:
        """Lines of at most this width."""
        for line in text.splitlines():
            yield from textwrap.wrap(line, int(inches * INCH / (self.width * self.points)))


TITLE, NOTES = Font(14, "bold", 0.68), Font(9, "normal", 0.58)


def panels(
    count: int, *, columns: int, inches: tuple[float, float], below: float = 0.0, title: str, notes: str
) -> tuple[Any, list[Any]]:
    """A figure, and its panels line by line.

    Args:
        columns: panels side by side.
        inches: width and height that a panel needs, with its ticks.
        below: inches for a legend or a scale under all panels.
        title, notes: stand above all panels; long lines go on in the next one.
    """
    from matplotlib.figure import Figure

    lines, needed = -(-count // columns), inches[0] * columns
    width = max(LEAST_INCHES, needed)
    written = [(line, font) for font, text in ((TITLE, title), (NOTES, notes)) for line in font.wrapped(text, width)]
    above = MARGIN_INCHES + sum(font.line_inches for _, font in written)
    height = above + inches[1] * lines + below
    figure = Figure(figsize=(width, height), layout="constrained")
    top = height - MARGIN_INCHES
    for line, font in written:
        figure.text(0.5, top / height, line, fontsize=font.points, weight=font.weight, ha="center", va="top")
        top -= font.line_inches
    share = min(1.0, STRETCH * needed / width)
    space = {"rect": ((1 - share) / 2, 0, share, 1 - above / height), "w_pad": 0.08, "h_pad": 0.08}
    figure.get_layout_engine().set(**space)  # type: ignore[union-attr]
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.axis("off")
    return figure, axes[:count]


def letters(text: str) -> int:
    """Of its longest line."""
    return max(map(len, text.split("\n")))


def explain_below(figure: Any, handles: Sequence[Any]) -> None:
    """A legend below all panels, in as many columns as there is room for."""
    inches = [SIGN_INCHES + LETTER_INCHES * letters(handle.get_label()) for handle in handles]
    width = figure.get_figwidth()
    columns = len(handles) if sum(inches) <= width else max(1, int(width / max(inches)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
