"""A timeline as a picture: two rows for each rank, and the last two iterations, what is exposed shaded.

rank 0  compute   | forward         |::::wait::::| backward        |
        wire            | all_gather |   | reduce_scatter |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dear_mpi.reporting.units import plural
from dear_mpi.see.sweep.panels import BELOW_INCHES, explain_below, panels
from dear_mpi.see.sweep.sweep import in_title, milliseconds
from dear_mpi.training.log.spans import COMPUTE, KINDS, LANES, Rank, Run, Span, Timeline

COLORS = {  # can be told apart by all readers; compute is blue
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "update": "#009E73",
    "reduce_scatter": "#E69F00",
    "all_gather": "#F0E442",
    "all_reduce": "#CC79A7",
    "other": "#999999",
}
SHADE, SHADE_ALPHA = "#D55E00", 0.28
SAID = {"wait": "compute waits: exposed", "other": "loss and other small ones"}
SHOWN = 2  # iterations
MOST_RANKS = 8  # in all panels together
MOST_RUNS = 6
MOST_IN_TITLE = 3  # schedules, whose result the title tells
WIDTH_INCHES, ROW_INCHES, PANEL_INCHES = 11.0, 0.24, 0.95
LONG = 80  # characters of a fact
GAP = 0.5  # of a row, between ranks
BAR = 0.86  # of a row
LINED_INCHES = 0.06  # bars that are narrower on average have no lines around them, which would hide them
LETTER_INCHES = 0.075
INSTANT_S = 1e-3  # what is shown of iterations that take no time
TOLD = ("fusion", "algorithm", "device", "transport")
HOW_TO_READ = "numbers on the wire are those of buckets"


class Window(NamedTuple):
    """What is shown of a run, in seconds."""

    begin_s: float
    end_s: float

    @property
    def inches(self) -> float:
        """Of a second."""
        return WIDTH_INCHES * 0.88 / (self.end_s - self.begin_s)


def draw_timeline(timeline: Timeline) -> Any:
    """The figure."""
    runs = timeline.runs[:MOST_RUNS]
    few = shown_ranks(runs)
    said, found = title(timeline), result(timeline)
    most = max(min(few, len(run.ranks)) for run in runs)
    figure, axes = panels(
        len(runs),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most * (len(LANES) + GAP)),
        below=2 * BELOW_INCHES,
        title=found or said,
        notes="\n".join([*([said.removeprefix("Predicted: ")] if found else []), *notes(timeline, few)]),
    )
    longest_s = max(window.end_s - window.begin_s for window in map(window_of, runs))
    for panel, run in zip(axes, runs, strict=True):
        begin_s = window_of(run).begin_s
        draw_run(panel, run, few, Window(begin_s, begin_s + longest_s))
    explain_below(figure, legend(runs))
    return figure


def shown_ranks(runs: Sequence[Run]) -> int:
    """How many ranks of each run there is room for."""
    return max(1, MOST_RANKS // len(runs))


def result(timeline: Timeline) -> str:
    """Which of several schedules is the fastest; nothing for live ones, which one iteration cannot tell apart."""
    if timeline.live or not 2 <= len(timeline.runs) <= MOST_IN_TITLE:
        return ""
    taken = sorted((last_iteration(run)[0], in_title(run.name)) for run in timeline.runs)
    first, *others = [f"{milliseconds(taken_s)} ms under {name}" for taken_s, name in taken]
    return f"An iteration takes {', '.join([first, *(other.replace(' ms', '', 1) for other in others)])}"


def title(timeline: Timeline) -> str:
    """Whether times are live or predicted, and of what."""
    sizes, words = {run.size for run in timeline.runs}, ["Live:" if timeline.live else "Predicted:"]
    words += [", ".join(in_title(str(name)) for name in listed(timeline.facts.get("model", [])))]
    words += ["under", in_title(timeline.runs[0].name)] * (len(timeline.runs) == 1)
    words += ["on", plural(max(sizes), "rank")] * (len(sizes) == 1)
    return " ".join(filter(None, words))


def listed(value: Any) -> Iterable[Any]:
    """The different values of a fact."""
    return dict.fromkeys(value) if isinstance(value, list | tuple) else [value]


def shortened(value: object) -> str:
    """A fact, without the tail of a long one, such as a fusion by places.

    >>> shortened("at:" + ",".join(map(str, range(100))))
    'at:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27...'
    """
    text = str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def notes(timeline: Timeline, few: int) -> Iterable[str]:
    """Where times come from, and what is left out."""
    facts = timeline.facts
    if "origin" in facts:
        yield facts["origin"]
    told = [f"{name} {', '.join(map(shortened, listed(facts[name])))}" for name in TOLD if facts.get(name)]
    shown = told[:1] if "origin" in facts else told  # which has the others
    left = [f"{len(timeline.runs) - MOST_RUNS} more runs"] * (len(timeline.runs) > MOST_RUNS)
    most = max(len(run.ranks) for run in timeline.runs)
    left += [f"ranks from {few} on"] * (most > few)
    yield "; ".join([*shown, HOW_TO_READ, *([f"not shown: {' and '.join(left)}"] if left else [])])


def window_of(run: Run) -> Window:
    """The last iterations, from the first rank that begins them to the last one that ends them."""
    shown = [rank.iterations[-SHOWN:] for rank in run.ranks]
    begin_s, end_s = min(each[0].begin_s for each in shown), max(each[-1].end_s for each in shown)
    return Window(begin_s, end_s if end_s > begin_s else begin_s + INSTANT_S)


def draw_run(axes: Any, run: Run, few: int, window: Window) -> None:
    """A panel."""
    places, names = [], []
    for number, rank in enumerate(run.ranks[:few]):
        top = number * (len(LANES) + GAP)
        draw_rank(axes, rank, top, window)
        places += [top + row for row in range(len(LANES))]
        names += [f"{rank.name}  {LANES[0]}", *LANES[1:]]
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    bottom = places[-1] + 0.5 + GAP / 2
    axes.set(xlim=(0, (window.end_s - window.begin_s) * 1e3), ylim=(bottom, -0.5 - GAP / 2))
    axes.set(title=f"{in_title(run.name)}: {told_of(run)}", xlabel="ms")
    axes.spines[["top", "right", "left"]].set_visible(False)


def told_of(run: Run) -> str:
    """What the last iteration takes, and what is exposed in it."""
    taken_s, exposed_s = last_iteration(run)
    return f"the last iteration takes {milliseconds(taken_s)} ms, of which {milliseconds(exposed_s)} are exposed"


def last_iteration(run: Run) -> tuple[float, float]:
    """Its seconds, and the exposed ones, on the rank where it takes longest."""
    longest = max(run.ranks, key=lambda rank: rank.iterations[-1].end_s - rank.iterations[-1].begin_s)
    last = longest.iterations[-1]
    return last.end_s - last.begin_s, sum(span.seconds for span in longest.within(last, "wait"))


def draw_rank(axes: Any, rank: Rank, top: float, window: Window) -> None:
    """The rows of a rank."""
    shown = clipped(rank.spans, window.begin_s, rank.iterations[-1].end_s)
    for kind in KINDS:
        spans = [span for span in shown if span.kind == kind]
        if kind == "wait":
            ranges = [extent(span, window) for span in spans]
            axes.broken_barh(ranges, (top - 0.5, len(LANES)), color=SHADE, alpha=SHADE_ALPHA, linewidth=0, zorder=0)
            continue
        for row, lane in enumerate(LANES):
            mine = [span for span in spans if span.lane == lane]
            wide = sum(span.seconds for span in mine) * window.inches > LINED_INCHES * len(mine)
            look = {"facecolor": COLORS[kind], "edgecolor": "white", "linewidth": 0.5 if wide else 0}
            axes.broken_barh([extent(span, window) for span in mine], (top + row - BAR / 2, BAR), **look)
    for span in shown:
        write(axes, span, top + LANES.index(span.lane), window)
    borders = [each.begin_s for each in rank.iterations[-SHOWN:]] + [rank.iterations[-1].end_s]
    at = [(border_s - window.begin_s) * 1e3 for border_s in borders]
    axes.vlines(at, top - 0.5, top + len(LANES) - 0.5, color="black", linewidth=1, clip_on=False)


def clipped(spans: Iterable[Span], begin_s: float, end_s: float) -> list[Span]:
    """What is between two times."""
    inside = (span for span in spans if span.begin_s < end_s and span.end_s > begin_s)
    return [span._replace(begin_s=max(begin_s, span.begin_s), end_s=min(end_s, span.end_s)) for span in inside]


def extent(span: Span, window: Window) -> tuple[float, float]:
    """Where a bar begins, and how long it is."""
    return (span.begin_s - window.begin_s) * 1e3, span.seconds * 1e3


def write(axes: Any, span: Span, row: float, window: Window) -> None:
    """The name of a layer on its span, or the number of a bucket, if there is room for it."""
    text = short(span)
    if text and LETTER_INCHES * (len(text) + 1) < span.seconds * window.inches:
        color = "white" if span.kind in ("backward", "update") else "black"
        begin, length = extent(span, window)
        axes.text(begin + length / 2, row, text, ha="center", va="center_baseline", fontsize=7, color=color)


def short(span: Span) -> str:
    """What is written on a span."""
    if span.lane == COMPUTE and span.kind in ("forward", "backward"):
        return span.name.removeprefix(f"{span.kind} ")
    if span.kind == "wait":
        return ""
    _, _, bucket = span.name.partition("bucket ")
    return bucket.partition(" ")[0]


def legend(runs: Sequence[Run]) -> list[Any]:
    """The kinds that are there, and what lines and shades are."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = {span.kind for run in runs for rank in run.ranks for span in rank.spans}
    signs = [
        Patch(facecolor=SHADE, alpha=SHADE_ALPHA, label=SAID[kind])
        if kind == "wait"
        else Patch(facecolor=COLORS[kind], label=SAID.get(kind, kind))
        for kind in KINDS
        if kind in there
    ]
    begins = Line2D([], [], color="black", marker="|", linestyle="none", markersize=12, markeredgewidth=1)
    begins.set_label("an iteration begins or ends")
    return [*signs, begins]
