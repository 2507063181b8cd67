"""A picture of a tuned fusion: what an iteration took by the size of buckets, and how trials came to the best one.

Trials have the numbers of their order; predictions, of which there are many, are lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.see.figure import legend_below, panels, scale_by_powers

PANEL_INCHES = 4.2, 2.9
TITLE = "Time of an iteration by the size of buckets"
WHOLE, CUT = {"color": "#0072B2", "marker": "o"}, {"color": "#009E73", "marker": "s"}  # Okabe and Ito
BEST = "#D55E00"
INSIDE = "cut:"  # buckets that begin and end inside tensors
MIB = 1 << 20

Trials = Sequence[tuple[str, float]]
"""Fusion and seconds of each, in their order."""


def draw_report(report: Mapping[str, Any]) -> Any:
    """A figure of the tuned fusion of a report of ``dear-mpi train``."""
    predicted = report["tuner"] == "auto"
    trials = [(trial["fusion"], trial["seconds"]) for trial in report["tuned"]]
    statistic = "PREDICTED" if predicted else "each trial: the median of a few iterations, of the slowest rank"
    heading = f"{report['schedule']} on {report['ranks']} ranks, {report['device']}, over {report['transport']}"
    count = 1 if predicted else 2
    notes = f"{heading}; {statistic}"
    figure, axes = panels(count, columns=count, inches=PANEL_INCHES, title=TITLE, notes=notes)
    draw_sizes(axes[0], trials, f"{report['model']}, {report['tuner']}", taken=report["fusion"], predicted=predicted)
    if not predicted:
        draw_order(axes[1], trials)
    legend_below(figure)
    return figure


def draw_sizes(axes: Any, trials: Trials, name: str, *, taken: str | None = None, predicted: bool = False) -> None:
    """Time by size, under a title that begins with a name.

    Args:
        taken: the fusion that is ringed; the best one if it is not given, or was not tried.
        predicted: whether trials are predictions, whose order has no meaning.
    """
    line, kind = ("-", "predictions") if predicted else ("", "trials")
    for inside, look, what in ((False, WHOLE, "whole layers"), (True, CUT, "cut:SIZE")):
        shown = [trial for trial in trials if trial[0].startswith(INSIDE) == inside]
        if shown:
            ascending = zip(*sorted(zip(*points(shown), strict=True)), strict=True)
            axes.plot(*ascending, linestyle=line, markersize=4, label=f"{kind}, {what}", **look)
    if not predicted:
        for number, (x, y) in enumerate(zip(*points(trials), strict=True), 1):
            beside = (0, 7 if number % 2 else -14)  # in points: neighbours seldom run into each other
            axes.annotate(str(number), (x, y), xytext=beside, textcoords="offset points", ha="center", fontsize=8)
        axes.margins(y=0.12)
    choice = min([trial for trial in trials if trial[0] == taken] or trials, key=lambda trial: trial[1])
    ring = {"linestyle": "", "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(*points([choice]), color=BEST, label="taken", **ring)
    sizes, _ = points(trials)
    low, high = min(sizes), max(sizes)
    powers = [2.0**power for power in range(-12, 12) if low <= 2**power <= high]
    scale_by_powers(axes, powers or [low, high], "{:.3g}".format)
    axes.set(title=f"{name}: {choice[0]} taken", xlabel="MB of a bucket", ylabel="ms of an iteration")


def draw_order(axes: Any, trials: Trials) -> None:
    """Time by trial, and the best one so far."""
    _, times = points(trials)
    numbers = range(1, len(times) + 1)
    axes.plot(numbers, times, linestyle="", markersize=4, **WHOLE)
    axes.step(numbers, np.minimum.accumulate(times), where="post", color=BEST, label="best so far")
    axes.set_xticks(numbers)
    axes.set(title="in the order of trials", xlabel="trial", ylabel="ms of an iteration")


def points(trials: Trials) -> tuple[list[float], list[float]]:
    """MB and milliseconds.

    >>> points([("cut:512KB", 0.25), ("25MB", 0.5)])
    ([0.5, 25.0], [250.0, 500.0])
    """
    return [parse_bytes(fusion.removeprefix(INSIDE)) / MIB for fusion, _ in trials], [1e3 * s for _, s in trials]
