"""An algorithm as a picture that moves: a frame for each step, for a projector; a step that breaks is red, and stays.

Each frame has the ranks with their peers, and what they hold after the step with what was sent in it.
"""

import io
from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import as_it_is, legend_below, panels
from dear_mpi.see.picture import WRONG, draw_panel, draw_shape, mark, signs
from dear_mpi.see.replayed import Replayed

FRAME_MS, LAST_MS = 1500, 4000
PANEL_INCHES = 5.2
DOTS_PER_INCH = 110


def write_frames(flag: str, path: Path, name: str, replayed: Replayed) -> None:
    """Write the frames into a GIF, which starts over and over; a ValueError if that cannot be done."""
    from PIL import Image

    count = len(replayed.rows[0]) + (replayed.broken is not None)
    frames = []
    for number in range(count):
        with io.BytesIO() as memory:
            figure = draw_frame(name, replayed, number, last=number == count - 1)
            as_it_is(figure)
            figure.savefig(memory, dpi=DOTS_PER_INCH)
            with Image.open(memory) as image:
                frames.append(image.convert("RGB"))
    times = [FRAME_MS] * (count - 1) + [LAST_MS]
    with replacing(flag, path) as file:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)


def draw_frame(name: str, replayed: Replayed, number: int, *, last: bool) -> Any:
    """What ranks hold after so many steps; in the last frame also what is wrong."""
    written, fault = replayed.programs, replayed.fault if last else None
    title = f"{name} {written[0].collective} on {plural(len(written), 'rank')}"
    size = (PANEL_INCHES, PANEL_INCHES)
    # What is wrong has its lines in each frame: all are equally large.
    said = f"\n{replayed.fault}" if replayed.fault else ""
    figure, (shape, steps) = panels(2, columns=2, inches=size, title=title + said)
    draw_shape(shape, written)
    draw_panel(steps, replayed, min(number, len(replayed.rows[0]) - 1), number - 1)
    for text in figure.texts:
        if replayed.fault and text.get_text() in str(replayed.fault):
            text.set_color(WRONG if fault else "none")
    if fault:
        mark(steps, fault.rank, fault.chunk)
        steps.title.set_color(WRONG)
    legend_below(figure, signs(len(written)))
    return figure
