"""Draw an algorithm: ranks and peers, then a panel per step (ranks down, chunks across, darker with more data)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from dear_mpi.collectives.program.program import Program, Receive
from dear_mpi.contrib.pictures.figure import legend_below, panels, write_figure
from dear_mpi.reporting.units import plural
from dear_mpi.see.explain import Asked, Replayed

PANEL_INCHES = 2.6
MOST_RANKS_WITH_TEXT, LETTERS = 8, 32  # in cells; in a row of cells
SHADES, DARKEST = "Greens", 1.4  # keeps arrows visible on complete cells (1)
ADDED, COPIED, FRAME, WRONG = "tab:orange", "tab:blue", "black", "red"


def write_steps(flag: str, path: Path, asked: Asked) -> None:
    """Write the picture of ``explain --picture``. ValueError: several algorithms, or the file cannot be written."""
    if len(asked.algorithms) > 1:
        raise ValueError(f"{flag} draws one algorithm, not {len(asked.algorithms)}")
    (name,) = asked.algorithms
    write_figure(flag, path, draw_steps(name, Replayed.of(asked.programs(name))))


def draw_steps(name: str, replayed: Replayed) -> Any:
    """Draw each rank's data after each step, up to a fault, which is red."""
    written, fault = replayed.programs, replayed.fault
    states = len(replayed.rows[0])
    count = 1 + states + (replayed.broken is not None)
    title = f"{name} {written[0].collective} on {plural(len(written), 'rank')}"
    figure, (shape_panel, *steps) = panels(
        count,
        columns=max(4, round(math.sqrt(2 * count))),  # like a slide
        inches=(PANEL_INCHES, PANEL_INCHES),
        title=title if fault is None else f"{title}\n{fault}",
    )
    draw_shape(shape_panel, written)
    for number, axes in enumerate(steps):
        draw_panel(axes, replayed, min(number, states - 1), number - 1)
    if fault is not None:
        mark(steps[-1], fault.rank, fault.chunk)
        for text in (*figure.texts, steps[-1].title):
            text.set_color(WRONG)
    legend_below(figure, signs())
    return figure


def mark(axes: Any, rank: int | None, chunk: int | None) -> None:
    """Frame the wrong cell in red, or the rank's row if no single cell is wrong."""
    if rank is not None:
        left, right = axes.get_xlim() if chunk is None else (chunk - 0.5, chunk + 0.5)
        corner, width = (left, rank - 0.5), right - left
        axes.add_patch(Rectangle(corner, width, 1, facecolor="none", edgecolor=WRONG, linewidth=3, zorder=5))


def signs() -> list[Any]:
    shades = colormaps[SHADES]
    return [
        Line2D([], [], color=ADDED, marker=">", label="sent, and added by the receiver"),
        Line2D([], [], color=COPIED, marker=">", label="sent, and copied by the receiver"),
        Patch(facecolor=shades(0.0), edgecolor="lightgray", label="nothing useful"),
        Patch(facecolor=shades(0.5 / DARKEST), label="darker: contributions of more ranks"),
        Patch(facecolor="none", edgecolor=FRAME, linewidth=2, label="complete"),
    ]


def draw_shape(axes: Any, written: Sequence[Program]) -> None:
    size = len(written)
    at = [(math.sin(2 * math.pi * rank / size), math.cos(2 * math.pi * rank / size)) for rank in range(size)]
    style = {"arrowstyle": "-|>", "color": "gray", "shrinkA": 13, "shrinkB": 13, "connectionstyle": "arc3,rad=-0.15"}
    sends = {(program.rank, send.peer) for program in written for step in program.steps for send in step.sends}
    for rank, peer in sends - {(rank, rank) for rank in range(size)}:
        axes.annotate("", xy=at[peer], xytext=at[rank], arrowprops=style)
    circle = {"boxstyle": "circle", "facecolor": "white", "edgecolor": "black"}
    for rank, (x, y) in enumerate(at):
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=min(10, 80 / size), bbox=circle)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
    axes.axis("off")
    axes.set_title("who sends to whom", fontsize="medium")


def draw_panel(axes: Any, replayed: Replayed, number: int, last: int) -> None:
    """Draw the data after ``number`` steps, and the arrows of step ``last``, the step before or one that breaks."""

    written, complete = replayed.programs, replayed.complete
    held, size = [history[number] for history in replayed.rows], len(written)
    axes.imshow(
        [[replayed.whose(mask).bit_count() / size for mask in row] for row in held],
        cmap=SHADES,
        vmin=0,
        vmax=DARKEST,
        aspect="auto",
    )
    frames = []
    for rank, row in enumerate(held):
        for chunk, mask in enumerate(row):
            text = replayed.holders(mask)
            if size <= MOST_RANKS_WITH_TEXT and len(text) * len(row) <= LETTERS:
                color = "white" if replayed.whose(mask).bit_count() > 0.8 * size else "black"
                axes.text(chunk, rank, text, ha="center", va="center", color=color, fontsize="x-small")
            if mask == complete[rank][chunk]:
                frames.append(Rectangle((chunk - 0.46, rank - 0.46), 0.92, 0.92))
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=FRAME, lw=16 / (8 + size)))
    axes.set(xlabel="chunk", ylabel="rank", xticks=ticks(written[0].chunks), yticks=ticks(size))
    for copy in range(1, 1 + written[0].scratch):
        axes.axvline(copy * written[0].chunks - 0.5, color=FRAME)
        axes.annotate(f"scratch {copy}", (copy * written[0].chunks, -0.4), fontsize="x-small", va="top")
    steps = [(program.rank, program.steps[last]) for program in written if 0 <= last < len(program.steps)]
    arrivals = [(to, rank, sent_as(replayed, to, rank, last)) for rank, step in steps for to in step.receives]
    if arrivals:
        draw_arrows(axes, arrivals)
    title = f"step {last} fails" if last == replayed.broken else f"after step {last}" if number else "at first"
    axes.set_title(title, fontsize="medium")


def sent_as(replayed: Replayed, receive: Receive, rank: int, number: int) -> range:
    """Return the peer's chunks that a receive brings; its chunks here if no send matches."""
    of_peer = [each for each in replayed.programs[rank].steps[number].receives if each.peer == receive.peer]
    sent = [send.chunks for send in replayed.programs[receive.peer].steps[number].sends if send.peer == rank]
    at = of_peer.index(receive)
    return sent[at] if at < len(sent) else receive.chunks


def draw_arrows(axes: Any, arrivals: Sequence[tuple[Receive, int, range]]) -> None:
    """Draw arrows from senders' rows to receivers', labelled with the chunks as sent."""
    arrows = [
        (start + 0.3, to.peer, chunk - start, rank - to.peer, ADDED if to.combine else COPIED)
        for to, rank, sent in arrivals
        for start, chunk in zip(sent, to.chunks, strict=False)
    ]
    *places, colors = zip(*arrows, strict=True)
    axes.quiver(*places, color=colors, width=0.008, angles="xy", scale_units="xy", scale=1)


def ticks(count: int) -> range:
    return range(0, count, -(-count // 8))
