"""Draw an algorithm: one panel per step, ranks down, chunks across, darker where more ranks have contributed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.replay import Row

__all__ = ["draw_steps"]

PANEL_INCHES = (2.6, 2.8)


def draw_steps(written: Sequence[Program], rows: list[list[Row]], path: Path) -> None:
    """Draw the programs of all ranks.

    Args:
        rows: what each rank holds before each step and at the end, as ``replay`` tells.
        path: the file; its ending decides the format.

    Raises:
        ValueError: matplotlib is missing, or cannot write such a file.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("a picture needs matplotlib: pip install matplotlib (our extra 'plot')") from None
    count = len(rows[0])
    columns = min(count, 4)
    lines = -(-count // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for number, axes in enumerate(panels):
        if number < count:
            panel(axes, written, rows, number)
        else:
            axes.axis("off")
    figure.suptitle(f"{written[0].collective} on {len(written)} ranks: how many ranks have contributed to each chunk")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"picture {str(path)!r} cannot be written: {error}") from None


def panel(axes: Any, written: Sequence[Program], rows: list[list[Row]], number: int) -> None:
    """What all ranks hold before one step; an arrow for each send, from the sender's row to the receiver's."""
    size, last = len(written), number == len(rows[0]) - 1
    axes.imshow([[mask.bit_count() for mask in history[number]] for history in rows], cmap="Greens", vmin=0, vmax=size)
    axes.set_title("at the end" if last else f"before step {number}", fontsize="medium")
    axes.set(xlabel="chunk", ylabel="rank", xticks=range(written[0].chunks), yticks=range(size))
    for program in [] if last else written:
        for send in program.steps[number].sends:
            for chunk in send.chunks:
                ends = {"xy": (chunk, send.peer), "xytext": (chunk, program.rank)}
                axes.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": "tab:orange"})
