"""A timeline as a picture: two rows for each rank, and the last two iterations, what is exposed shaded.

rank 0  compute   | forward         |::::wait::::| backward        |
        wire            | all_gather |   | reduce_scatter |
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import INSTANT_S, label, legend_below, panels, short_ms, upright
from dear_mpi.training.log.spans import LANES, Rank, Run, Span, Timeline

COLORS = {  # of each kind, in the order of the legend; can be told apart by all readers; compute is blue
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "weights": "#332288",
    "wait": "#D55E0047",
    "update": "#009E73",
    "reduce_scatter": "#E69F00",
    "all_gather": "#F0E442",
    "all_reduce": "#CC79A7",
    "exchange": "#B08D6E",
    "other": "#999999",
}
SAID = {"wait": "compute waits: exposed", "weights": "weights, delayed", "other": "loss and other small ones"}
DARK = ("backward", "weights", "update")  # letters on them are white
SHOWN = 2  # iterations
MOST_RANKS = 8  # in all panels together
MOST_RUNS = 6
MOST_IN_TITLE = 3  # schedules, whose result the title tells
WIDTH_INCHES, ROW_INCHES, PANEL_INCHES = 11.0, 0.24, 0.95
INSIDE = 0.88  # of the width, for the rows
LONG = 80  # characters of a fact
GAP = 0.5  # of a row, between ranks
BAR = 0.86  # of a row
LINED_INCHES = 0.06  # bars that are narrower on average have no lines around them, which would hide them
LETTER_INCHES = 0.075
TOLD = ("fusion", "algorithm", "device", "transport")
HOW_TO_READ = "numbers on the wire are those of buckets"


def draw_timeline(timeline: Timeline) -> Any:
    from matplotlib.patches import Patch

    runs = timeline.runs[:MOST_RUNS]
    few = max(1, MOST_RANKS // len(runs))
    most = max(min(few, len(run.ranks)) for run in runs)
    title, *notes = [*headings(timeline), *origins(timeline, few)]
    figure, axes = panels(
        len(runs),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most * (len(LANES) + GAP)),
        title=title,
        notes="\n".join(notes),
    )
    longest_s = max(end_s - begin_s for begin_s, end_s in map(window_of, runs)) or INSTANT_S
    for panel, run in zip(axes, runs, strict=True):
        draw_run(panel, run, few, longest_s)
    there = {span.kind for run in runs for rank in run.ranks for span in rank.spans}
    signs = [Patch(color=color, lw=0, label=SAID.get(kind, kind)) for kind, color in COLORS.items() if kind in there]
    legend_below(figure, [*signs, upright("an iteration begins or ends")])
    return figure


def headings(timeline: Timeline) -> Iterator[str]:
    """What was run, and whether times are live or predicted.

    Before it, of a few predicted schedules, which is the fastest: single iterations of live ones cannot tell.
    """
    runs, sizes = timeline.runs, {run.size for run in timeline.runs}
    words = [", ".join(map(label, different(timeline.facts.get("model", []))))]
    words += ["under", label(runs[0].name)] * (len(runs) == 1)
    words += ["on", plural(max(sizes), "rank")] * (len(sizes) == 1)
    what = " ".join(filter(None, words))
    if timeline.live or not 2 <= len(runs) <= MOST_IN_TITLE:
        yield f"{'Live' if timeline.live else 'Predicted'}: {what}"
        return
    taken = sorted((last_iteration(run)[0], label(run.name)) for run in runs)
    (first_s, first), *others = [(short_ms(taken_s), name) for taken_s, name in taken]
    yield ", ".join([f"An iteration takes {first_s} ms under {first}", *(f"{ms} under {name}" for ms, name in others)])
    yield what


def different(fact: Any) -> list[Any]:
    """The different values of a fact, of all runs or of each."""
    return list(dict.fromkeys(fact)) if isinstance(fact, list | tuple) else [fact]


def shortened(fact: object) -> str:
    """A fact, without the tail of a long one, such as a fusion by borders.

    >>> shortened("at:" + ",".join(map(str, range(100))))
    'at:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27...'
    """
    text = str(fact)
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def origins(timeline: Timeline, few: int) -> Iterator[str]:
    """Where times come from, and what is left out."""
    facts = timeline.facts
    told = [f"{name} {', '.join(map(shortened, different(facts[name])))}" for name in TOLD if facts.get(name)]
    if "origin" in facts:
        yield facts["origin"]
        told = told[:1]  # it has the others
    left = [f"{len(timeline.runs) - MOST_RUNS} more runs"] * (len(timeline.runs) > MOST_RUNS)
    left += [f"ranks from {few} on"] * any(len(run.ranks) > few for run in timeline.runs)
    yield "; ".join([*told, HOW_TO_READ, *[f"not shown: {' and '.join(left)}"] * bool(left)])


def window_of(run: Run) -> tuple[float, float]:
    """From the first rank that begins the last iterations to the last one that ends them, in seconds."""
    shown = [rank.iterations[-SHOWN:] for rank in run.ranks]
    return min(each[0].begin_s for each in shown), max(each[-1].end_s for each in shown)


def draw_run(axes: Any, run: Run, few: int, seconds: float) -> None:
    """A panel of so many seconds, with the first few ranks."""
    begin_s, _ = window_of(run)
    tops = [number * (len(LANES) + GAP) for number in range(min(few, len(run.ranks)))]
    for rank, top in zip(run.ranks, tops, strict=False):
        draw_rank(axes, rank, top, begin_s, INSIDE * WIDTH_INCHES / seconds)
    rows = [top + row for top in tops for row in range(len(LANES))]
    names = [name for rank in run.ranks[:few] for name in (f"{rank.name}  {LANES[0]}", *LANES[1:])]
    axes.set_yticks(rows, names)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, seconds * 1e3), ylim=(rows[-1] + 0.5 + GAP / 2, -0.5 - GAP / 2))
    taken, exposed = map(short_ms, last_iteration(run))
    told = f"the last iteration takes {taken} ms, of which {exposed} are exposed"
    axes.set(title=f"{label(run.name)}: {told}", xlabel="ms")
    axes.spines[["top", "right", "left"]].set_visible(False)


def last_iteration(run: Run) -> tuple[float, float]:
    """Its seconds, and the exposed ones, on the rank where it takes longest."""
    longest = max(run.ranks, key=lambda rank: rank.iterations[-1].end_s - rank.iterations[-1].begin_s)
    last = longest.iterations[-1]
    return last.end_s - last.begin_s, sum(span.seconds for span in longest.within(last, "wait"))


def draw_rank(axes: Any, rank: Rank, top: float, zero_s: float, inches: float) -> None:
    """The rows of a rank; a second takes so many inches."""
    end_s = rank.iterations[-1].end_s
    shown = [span for span in rank.spans if span.begin_s < end_s and span.end_s > zero_s]
    shown = [span._replace(begin_s=max(zero_s, span.begin_s), end_s=min(end_s, span.end_s)) for span in shown]
    for (row, lane), (kind, color) in product(enumerate(LANES), COLORS.items()):
        spans = [span for span in shown if (span.lane, span.kind) == (lane, kind)]
        bars = [((span.begin_s - zero_s) * 1e3, span.seconds * 1e3) for span in spans]
        if kind == "wait":
            axes.broken_barh(bars, (top - 0.5, len(LANES)), facecolor=color, linewidth=0, zorder=0)
            continue
        lined = sum(span.seconds for span in spans) * inches > LINED_INCHES * len(spans)
        look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.5 * lined}
        axes.broken_barh(bars, (top + row - BAR / 2, BAR), **look)
        for span, (begin, length) in zip(spans, bars, strict=True):
            text = short(span)
            if LETTER_INCHES * (len(text) + 1) < span.seconds * inches:
                look = {"ha": "center", "va": "center_baseline", "color": "white" if kind in DARK else "black"}
                axes.text(begin + length / 2, top + row, text, fontsize=7, **look)
    borders = [*(each.begin_s for each in rank.iterations[-SHOWN:]), end_s]
    at = [(border_s - zero_s) * 1e3 for border_s in borders]
    axes.vlines(at, top - 0.5, top + len(LANES) - 0.5, color="black", linewidth=1, clip_on=False)


def short(span: Span) -> str:
    """What is written on a span: the name of a layer, or the number of a bucket."""
    if span.kind in ("forward", "backward", "weights"):
        return span.name.removeprefix(f"{span.kind} ").removeprefix("of ")
    return span.name.partition("bucket ")[2].partition(" ")[0]
