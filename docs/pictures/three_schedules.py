"""The picture of README: one iteration of three schedules, each with its best buckets, readable on a phone.

python -m docs.pictures.three_schedules [docs/pictures/three-schedules.svg]
"""

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dear_mpi.contrib.look import COLORS
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import timeline_of
from dear_mpi.training.events.spans import COMPUTE, WIRE

PICTURE = Path("docs/pictures/three-schedules.svg")
SCHEDULES = ("wfbp", "dear", "dear-eager")
SETTING = {"models": ("synthetic:resnet50",), "ranks": (16,), "network": "10gbit,50us", "forward_s": 0.06}
SIZES_MB = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 100)
FUSIONS = ("none", *(f"{kind}{size}MB" for kind in ("", "cut:") for size in SIZES_MB))
SAID = {"wait": "compute waits", "all_reduce": "all-reduce"}
SAID |= {"reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}
SHOWN = ("forward", "backward", *SAID)
INCHES = 7.5, 8.0  # 720 pixels in a browser; half of them on a phone
POINTS, LARGE = 17.5, 19.0  # 11.7 and 12.7 pixels on a phone of 360
NOTES = "Predicted: ResNet-50, 16 ranks, 10 Gbit/s.\nUpper bars: compute. Lower bars: network."


def best_rows():
    """Of each schedule the row of its fastest fusion."""
    found = simulate(Settings(schedules=SCHEDULES, fusions=FUSIONS, **SETTING))
    best = [min((row for row in found if row.row["schedule"] == name), key=seconds) for name in SCHEDULES]
    return [
        row
        for each in best
        for row in simulate(
            Settings(schedules=(each.row["schedule"],), fusions=(each.row["fusion"],), **SETTING), traced=True
        )
    ]


def seconds(simulated):
    return simulated.row["iteration_s"]


def title_of(rows):
    """The gains, over wfbp with its own best buckets."""
    first, *others = rows
    gains = [f"{each.row['schedule']} {seconds(first) / seconds(each):.2f}x" for each in others]
    return f"{', '.join(gains)} faster than {first.row['schedule']}"


def buckets_of(row):
    kind, _, size = row["fusion"].rpartition(":")
    size = size.replace("MB", " MB")
    return f"{size}, cut" if kind else size


def draw(rows):
    figure = Figure(figsize=INCHES)
    figure.text(0.5, 0.985, title_of(rows), ha="center", va="top", size=LARGE, weight=700)
    figure.text(0.5, 0.94, NOTES, ha="center", va="top", size=POINTS)
    axes = figure.add_axes((0.02, 0.19, 0.96, 0.665))
    longest_s = max(map(seconds, rows))
    for number, (each, run) in enumerate(zip(rows, (timeline_of([each]).runs[0] for each in rows), strict=True)):
        top, row = 3.6 * number, each.row
        said = f"{row['schedule']}: {1e3 * row['iteration_s']:.0f} ms (best buckets: {buckets_of(row)})"
        axes.text(0, top, said, size=POINTS, weight=700, va="center")
        draw_lanes(axes, run.ranks[0], top + 1)
    axes.set(xlim=(0, 1e3 * longest_s), ylim=(3.6 * len(rows) - 0.55, -0.6))
    axes.set_yticks([])
    ticks = range(0, int(1e3 * longest_s), 50)
    axes.set_xticks(ticks, [*map(str, ticks[:-1]), f"{ticks[-1]} ms"], size=POINTS)
    axes.spines[["top", "right", "left"]].set_visible(False)
    signs = [Patch(color=COLORS[kind], lw=0, label=SAID.get(kind, kind)) for kind in SHOWN]
    look = {"handlelength": 1.2, "columnspacing": 1.5, "labelspacing": 0.25, "frameon": False}
    figure.legend(handles=signs, loc="lower center", ncols=2, fontsize=POINTS, **look)
    return figure


def draw_lanes(axes, rank, top):
    """The last iteration: compute above the wire."""
    last = rank.iterations[-1]
    for row, lane in enumerate((COMPUTE, WIRE)):
        for kind in SHOWN:
            bars = []
            for span in (span for span in rank.spans if (span.lane, span.kind) == (lane, kind)):
                begin_s, end_s = max(span.begin_s, last.begin_s), min(span.end_s, last.end_s)
                begin, end = (1e3 * (each - last.begin_s) for each in (begin_s, end_s))
                if lane == COMPUTE and bars and abs(begin - sum(bars[-1])) < 1e-6:  # layers are one bar
                    bars[-1] = (bars[-1][0], end - bars[-1][0])
                elif begin < end:
                    bars.append((begin, end - begin))
            edge = "white" if lane == WIRE else "none"
            axes.broken_barh(bars, (top + row - 0.42, 0.84), facecolor=COLORS[kind], edgecolor=edge, linewidth=0.5)


def write(path, rows):
    with matplotlib.rc_context({"svg.hashsalt": "dear-mpi"}):
        metadata = {"Date": None, "Title": title_of(rows)} if path.suffix == ".svg" else {}
        draw(rows).savefig(path, metadata=metadata, dpi=96)


if __name__ == "__main__":
    write(Path(*sys.argv[1:]) if sys.argv[1:] else PICTURE, best_rows())
