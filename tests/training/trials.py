"""How docs/tuning.png draws the trials of a search: what an iteration took by the size of buckets, and by trial."""

import numpy as np

from dear_mpi.reporting.units import parse_bytes

PANEL_INCHES = 4.2, 2.9
TITLE = "Time of an iteration by the size of buckets"
TRIAL = {"color": "#0072B2", "marker": "o", "linestyle": "", "markersize": 4}  # of Okabe and Ito, as BEST
BEST = "#D55E00"
MIB = 1 << 20


def draw_sizes(axes, trials, name):
    """Time by size, with the number of each trial; the best one is ringed."""
    sizes, times = points(trials)
    axes.plot(sizes, times, label="trials", **TRIAL)
    for number, at in enumerate(zip(sizes, times, strict=True), 1):
        beside = (0, 7 if number % 2 else -14)  # in points: neighbours seldom run into each other
        axes.annotate(str(number), at, xytext=beside, textcoords="offset points", ha="center", fontsize=8)
    axes.margins(y=0.12)
    best = min(trials, key=lambda trial: trial[1])
    ring = {"linestyle": "", "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(*points([best]), color=BEST, label="taken", **ring)
    axes.set(title=f"{name}: {best[0]} taken", xlabel="MB of a bucket", ylabel="ms of an iteration")


def draw_order(axes, trials):
    """Time by trial, and the best one so far."""
    _, times = points(trials)
    numbers = range(1, len(times) + 1)
    axes.plot(numbers, times, **TRIAL)
    axes.step(numbers, np.minimum.accumulate(times), where="post", color=BEST, label="best so far")
    axes.set_xticks(numbers)
    axes.set(title="in the order of trials", xlabel="trial", ylabel="ms of an iteration")


def points(trials):
    """MB and milliseconds of fusions such as 25MB, and their seconds."""
    return [parse_bytes(fusion) / MIB for fusion, _ in trials], [1e3 * seconds for _, seconds in trials]
