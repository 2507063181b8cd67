"""Choose the picture that suits what was varied in a sweep.

| several ranks | several fusions | picture |
|---|---|---|
| no | no | bars: where the time of an iteration goes |
| no | yes | cells: time by fusion and schedule |
| yes | no | curves: time by ranks |
| yes | yes | cells: speed-up by ranks and fusion; without a schedule that could be faster than wfbp, curves |
"""

from collections.abc import Callable, Sequence
from typing import Any

from dear_mpi.see.sweep.bars import draw_bars
from dear_mpi.see.sweep.cells import draw_speedups, draw_times
from dear_mpi.see.sweep.curves import draw_curves
from dear_mpi.see.sweep.sweep import Row, Sweep
from dear_mpi.training.schedules import BASELINE


def draw_sweep(rows: Sequence[Row], heading: str, over: str = BASELINE) -> Any:
    """A figure of the rows of a simulation.

    Args:
        rows: with the keys of ``dear-mpi simulate --json``, at least one.
        heading: stands below the title: that times are predicted, and where figures come from.
        over: the schedule that speed-ups are over.
    """
    sweep = Sweep(rows, over)
    return picture_of(sweep)(sweep, heading)


def picture_of(sweep: Sweep) -> Callable[[Sweep, str], Any]:
    """The function that draws it."""
    several_fusions = len(sweep.fusions) > 1
    if len(sweep.ranks) == 1:
        return draw_times if several_fusions else draw_bars
    return draw_speedups if several_fusions and sweep.schedules != [BASELINE] else draw_curves
