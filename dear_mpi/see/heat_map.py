"""The links of all pairs of ranks as heat maps: from the rank on the left to the rank below; red is slow in both."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dear_mpi.see.figure import panels

PANEL_INCHES, CELL_INCHES = 4.6, 0.5
MOST_NUMBERED = 16  # ranks: in more cells nobody could read numbers
MOST_TICKS, TICKS = 16, 5  # of an axis, of a scale of colours
LOG_FROM = 5.0  # times the least: then colours are by powers
BORDER = {"color": "black", "linewidth": 2.0}
DARK = 0.6  # of the colours, from where numbers are white

# Key of a row, what its panel says, colours.
MAPS = (("latency_us", "latency (us)", "YlOrRd"), ("GBps", "one way (GB/s)", "YlOrRd_r"))


def draw_heat_maps(rows: Sequence[Mapping[str, Any]], hosts: Sequence[str], notes: str) -> Any:
    """A figure of rows with the keys of ``dear-mpi links --json``, one for each direction of each pair.

    ``hosts`` has the name of each rank's host, between which lines are drawn.
    """
    size = len(hosts)
    inches = max(PANEL_INCHES, CELL_INCHES * min(size, MOST_NUMBERED) + 1.6)
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
    """The cells, with numbers where there is room."""
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
    """The ranks at both axes, and the borders of hosts."""
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
