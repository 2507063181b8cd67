"""A table of cells with numbers in them; the shade or colour of a cell depends on its number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.see.sweep.panels import LETTER_INCHES, letters

CELL_INCHES = 0.68, 0.36  # at least, with a number in it
ROUNDING = 1e-9
BRIGHT = 0.45  # of a cell: black letters can be read on it


@dataclass(frozen=True)
class Table:
    """What is in the cells.

    Attributes:
        lines, columns: their names.
        values: of each line.
        marked: (line, column) of cells with a frame.
    """

    lines: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    marked: Collection[tuple[int, int]] = ()

    @property
    def inches(self) -> tuple[float, float]:
        """Width and height that can be read, with names around and a title above."""
        wide, high = CELL_INCHES
        widest = max(map(letters, self.columns)) * LETTER_INCHES
        beside = 0.6 + max(map(letters, self.lines)) * LETTER_INCHES
        return beside + len(self.columns) * max(wide, widest + 0.1), 0.9 + len(self.lines) * high


def draw_cells(axes: Any, table: Table, *, text: Callable[[float], str], shades: str, norm: Any) -> Any:
    """Draw a table into a panel; the cells, for a bar of their colours.

    Args:
        text: of a value, in its cell.
        shades: a colour map of matplotlib.
        norm: from values to 0..1, the place in that map.
    """
    from matplotlib.patches import Rectangle

    mesh = axes.pcolormesh(table.values, cmap=shades, norm=norm, edgecolors="white", linewidth=1.5)
    for line, values in enumerate(table.values):
        for column, value in enumerate(values):
            red, green, blue, _ = mesh.cmap(mesh.norm(value))
            color = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > BRIGHT else "white"
            axes.text(column + 0.5, line + 0.5, text(value), ha="center", va="center", fontsize="small", color=color)
    for line, column in table.marked:
        frame = Rectangle((column + 0.02, line + 0.04), 0.96, 0.92, fill=False, edgecolor="black", linewidth=1.8)
        axes.add_patch(frame)
    axes.set_xticks([column + 0.5 for column in range(len(table.columns))], table.columns)
    axes.set_yticks([line + 0.5 for line in range(len(table.lines))], table.lines)
    axes.invert_yaxis()  # the first line on top
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return mesh


def least_of(values: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """The (line, column) of the least value, and of those that only rounding makes different.

    >>> least_of([[3.0, 2.0], [2.0, 4.0]])
    [(0, 1), (1, 0)]
    """
    least = min(map(min, values))
    cells = [(line, column) for line, found in enumerate(values) for column, _ in enumerate(found)]
    return [(line, column) for line, column in cells if values[line][column] <= least * (1 + ROUNDING)]
