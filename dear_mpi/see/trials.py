"""A picture of a tuned fusion: what an iteration took by the size of buckets, and how trials came to the best one.

Trials have the numbers of their order; predictions, of which there are many, are lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.see.figure import write_figure
from dear_mpi.see.sweep.panels import BELOW_INCHES, explain_below, panels

PANEL_INCHES = 4.2, 2.9
TRIAL, BEST, CUT, CURVE = "#0072B2", "#D55E00", "#009E73", "0.6"  # Okabe and Ito
INSIDE = "cut:"  # buckets that begin and end inside tensors
MIB = 1 << 20


@dataclass(frozen=True)
class Trials:
    """What was tried.

    Attributes:
        trials: fusion and seconds of each, in order.
        curve: fusion and seconds of sizes that are known, if there are any.
        taken: the fusion that is ringed; the best one if it is not given.
        predicted: whether the trials are predictions, whose order has no meaning.
    """

    title: str
    trials: Sequence[tuple[str, float]]
    curve: Sequence[tuple[str, float]] = ()
    taken: str | None = None
    predicted: bool = False

    @property
    def choice(self) -> tuple[str, float]:
        """The trial that is ringed."""
        taken = [trial for trial in self.trials if trial[0] == self.taken]
        return min(taken or self.trials, key=lambda trial: trial[1])


def draw_report(report: Mapping[str, Any], *, flag: str, path: Path) -> None:
    """Draw the tuned fusion of a report of ``dear-mpi train``.

    Args:
        flag: how the user named the file.
        path: the file; its ending decides the format.

    Raises:
        ValueError: the file cannot be written.
    """
    predicted = report["tuner"] == "auto"
    tried = [(trial["fusion"], trial["seconds"]) for trial in report["tuned"]]
    statistic = "PREDICTED" if predicted else "each trial: the median of a few iterations, of the slowest rank"
    heading = f"{report['schedule']} on {report['ranks']} ranks, {report['device']}, over {report['transport']}"
    trials = Trials(f"{report['model']}, {report['tuner']}", tried, taken=report["fusion"], predicted=predicted)
    draw_trials([trials], f"{heading}; {statistic}", flag=flag, path=path)


def draw_trials(searches: Sequence[Trials], heading: str, *, flag: str, path: Path) -> None:
    """Draw what searches tried, each in a row of panels of its own; ``heading`` stands below the title."""
    columns = 1 if all(search.predicted for search in searches) else 2
    figure, axes = panels(
        columns * len(searches),
        columns=columns,
        inches=PANEL_INCHES,
        below=BELOW_INCHES,
        title="Time of an iteration by the size of buckets",
        notes=heading,
    )
    for number, search in enumerate(searches):
        by_size, *by_trial = axes[columns * number : columns * (number + 1)]
        draw_sizes(by_size, search)
        for panel in by_trial:
            draw_order(panel, search)
    named = {handle.get_label(): handle for panel in axes for handle in panel.get_legend_handles_labels()[0]}
    explain_below(figure, list(named.values()))
    write_figure(flag, path, figure)


def draw_sizes(axes: Any, search: Trials) -> None:
    """Time by size."""
    ascending = sorted(search.trials, key=lambda trial: points([trial])[0])
    whole = [trial for trial in ascending if not trial[0].startswith(INSIDE)]
    inside = [trial for trial in ascending if trial[0].startswith(INSIDE)]
    if search.curve:
        axes.plot(*points(search.curve), color=CURVE, linewidth=1, label="all sizes")
    line = "-" if search.predicted else ""
    kind = "predictions" if search.predicted else "trials"
    axes.plot(*points(whole), linestyle=line, marker="o", markersize=4, color=TRIAL, label=f"{kind}, whole layers")
    if inside:
        axes.plot(*points(inside), linestyle=line, marker="s", markersize=4, color=CUT, label=f"{kind}, cut:SIZE")
    if not search.predicted:
        for number, (x, y) in enumerate(zip(*points(search.trials), strict=True), 1):
            offset = (0, 7 if number % 2 else -14)  # in points: neighbours seldom run into each other
            axes.annotate(str(number), (x, y), xytext=offset, textcoords="offset points", ha="center", fontsize=8)
        axes.margins(y=0.12)
    ring = {"linestyle": "", "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(*points([search.choice]), color=BEST, label="taken", **ring)
    sizes, _ = points([*search.trials, *search.curve])
    axes.set_xscale("log", base=2)
    ends = min(sizes), max(sizes)
    ticks = [2**power for power in range(-12, 12) if ends[0] <= 2**power <= ends[1]] or list(ends)
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(title=f"{search.title}: {search.choice[0]} taken", xlabel="MB of a bucket", ylabel="ms of an iteration")


def draw_order(axes: Any, search: Trials) -> None:
    """Time by trial, and the best one so far."""
    _, times = points(search.trials)
    numbers = list(range(1, len(times) + 1))
    axes.plot(numbers, times, linestyle="", marker="o", markersize=4, color=TRIAL)
    axes.step(numbers, list(accumulate(times, min)), where="post", color=BEST, label="best so far")
    if search.curve:
        axes.axhline(min(points(search.curve)[1]), color=CURVE, linewidth=1)
    axes.set_xticks(numbers)
    axes.set(title="in the order of trials", xlabel="trial", ylabel="ms of an iteration")


def points(trials: Sequence[tuple[str, float]]) -> tuple[list[float], list[float]]:
    """MB and milliseconds.

    >>> points([("cut:512KB", 0.25), ("25MB", 0.5)])
    ([0.5, 25.0], [250.0, 500.0])
    """
    return [parse_bytes(fusion.removeprefix(INSIDE)) / MIB for fusion, _ in trials], [1e3 * s for _, s in trials]
