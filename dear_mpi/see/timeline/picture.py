"""Draw a timeline: rows for each rank, the last two iterations, exposed time shaded.

rank 0  compute   | forward         |::::wait::::| backward        |
        wire            | all_gather |   | reduce_scatter |
        steps           |0|0|1|1|2|2 |   |0|0|1|1|2|2     |      if measured; numbers are step numbers
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import INSTANT_S, label, legend_below, panels, short_ms, upright
from dear_mpi.see.timeline.trace import clock_of
from dear_mpi.training.log.spans import COMPUTE, STEPS, WIRE, Rank, Run, Span, Timeline

COLORS = {  # by kind, in the order of the legend; all readers can tell them apart; compute is blue
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
INSIDE_COLORS = {  # of the parts of a collective
    "waiting": "#C4C4C4",
    "transfer": "#A6761D",
    "either": "#D9A679",
    "whole": "#AA4499",
    "combining": "#882255",
    "copying": "#88CCEE",
}
SAID = {  # legend names that differ from the kind
    "wait": "compute waits: exposed",
    "weights": "weights, delayed",
    "other": "loss and other small ones",
    "waiting": "waiting for the peer",
    "either": "waiting or transfer",
    "whole": "in the MPI library",
}
DARK = ("backward", "weights", "update", "transfer", "whole", "combining")  # with white letters
MOST_RUNS = 6  # panels of a picture
WIDTH_INCHES = 11.0
INSIDE = 0.88  # share of the width for the rows
BAR = 0.86  # share of a row
LINED_INCHES = 0.06  # bars that are narrower on average are drawn without borders, which would hide them
LETTER_INCHES = 0.075
JOINED = 0.002  # share of the width: closer spans of one kind and step are merged


def signs(kinds: Collection[str]) -> list[Any]:
    """Return legend entries for the colours of these kinds."""
    from matplotlib.patches import Patch

    known = COLORS | INSIDE_COLORS
    return [Patch(color=color, lw=0, label=SAID.get(kind, kind)) for kind, color in known.items() if kind in kinds]


def draw_row(axes: Any, spans: Sequence[Span], row: float, zero_s: float, inches: float) -> None:
    """Draw one lane's bars, in ms after ``zero_s``, at ``inches`` per second."""
    for kind, color in (COLORS | INSIDE_COLORS).items():
        own = [span for span in spans if span.kind == kind]
        lined = sum(span.seconds for span in own) * inches > LINED_INCHES * len(own)
        look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.5 * lined}
        bars = [((span.begin_s - zero_s) * 1e3, span.seconds * 1e3) for span in own]
        axes.broken_barh(bars, (row - BAR / 2, BAR), **look)
        for span, (begin, length) in zip(own, bars, strict=True):
            text = step_of(span) if span.lane == STEPS else short(span)
            if LETTER_INCHES * (len(text) + 1) < span.seconds * inches:
                letters = {"ha": "center", "va": "center_baseline", "fontsize": 7}
                axes.text(begin + length / 2, row, text, color="white" if kind in DARK else "black", **letters)


def short(span: Span) -> str:
    """Return a span's label: a layer's name, or a bucket's number."""
    if span.kind in ("forward", "backward", "weights"):
        return span.name.removeprefix(f"{span.kind} ").removeprefix("of ")
    return span.name.partition("bucket ")[2].partition(" ")[0]


def joined(spans: Iterable[Span], apart_s: float) -> Iterator[Span]:
    """Merge neighbouring spans of one rank with equal kind and step, such as segments of a chunk."""
    last: Span | None = None
    for span in spans:
        if last is not None and alike(last, span) and span.begin_s - last.end_s < apart_s:
            last = last._replace(end_s=span.end_s)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def alike(one: Span, other: Span) -> bool:
    return (one.kind, step_of(one)) == (other.kind, step_of(other))


def step_of(span: Span) -> str:
    """Return the step number, if there is one."""
    head, colon, _ = span.name.partition(":")
    return head.removeprefix("step ") if colon else ""


SHOWN = 2  # iterations
MOST_RANKS = 8  # over all panels
MOST_IN_TITLE = 3  # schedules with a result in the title
ROW_INCHES, PANEL_INCHES = 0.24, 0.95
LONG = 80  # characters of a fact
GAP = 0.5  # share of a row, between ranks
TOLD = ("fusion", "algorithm", "device", "transport")
HOW_TO_READ = "numbers on the wire are those of buckets"
STEPS_READ = ", in the row below those of steps"


def draw_timeline(timeline: Timeline) -> Any:
    runs = timeline.runs[:MOST_RUNS]
    few = max(1, MOST_RANKS // len(runs))
    most = max(min(few, len(run.ranks)) for run in runs)
    title, *notes = [*headings(timeline), *origins(timeline, few)]
    figure, axes = panels(
        len(runs),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most * (max(len(run.lanes) for run in runs) + GAP)),
        title=title,
        notes="\n".join(notes),
    )
    longest_s = max(end_s - begin_s for begin_s, end_s in map(window_of, runs)) or INSTANT_S
    drawn = set().union(*(draw_run(panel, run, few, longest_s) for panel, run in zip(axes, runs, strict=True)))
    kinds = {span.kind for run in runs for rank in run.ranks for span in rank.spans}
    legend_below(figure, [*signs(drawn | kinds), upright("an iteration begins or ends")])
    return figure


def headings(timeline: Timeline) -> Iterator[str]:
    """Describe the runs, and whether times are live or predicted.

    A few predicted schedules are ranked first; single live iterations are too noisy for a ranking.
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
    """Return the distinct values of a fact, over all runs."""
    return list(dict.fromkeys(fact)) if isinstance(fact, list | tuple) else [fact]


def shortened(fact: object) -> str:
    """Shorten a fact by its tail, such as a fusion by borders.

    >>> shortened("at:" + ",".join(map(str, range(100))))
    'at:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27...'
    """
    text = str(fact)
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def origins(timeline: Timeline, few: int, *, steps: bool = True) -> Iterator[str]:
    """Describe the source of times and the omissions; ``steps``: whether an existing step row is shown."""
    facts = timeline.facts
    told = [f"{name} {', '.join(map(shortened, different(facts[name])))}" for name in TOLD if facts.get(name)]
    if "origin" in facts:
        yield facts["origin"]
        told = told[:1]  # it contains the others
    left = [f"{len(timeline.runs) - MOST_RUNS} more runs"] * (len(timeline.runs) > MOST_RUNS)
    left += [f"ranks from {few} on"] * any(len(run.ranks) > few for run in timeline.runs)
    if any(STEPS in run.lanes for run in timeline.runs):
        told += [f"clock: {clock_of(timeline)}", HOW_TO_READ + STEPS_READ * steps]
    else:
        told.append(HOW_TO_READ)
    yield "; ".join([*told, *[f"not shown: {' and '.join(left)}"] * bool(left)])


def window_of(run: Run) -> tuple[float, float]:
    """Return the window of the last iterations, from the first rank's start to the last rank's end, in seconds.

    It covers everything if a rank has completed no iteration, and is twice as long if the run broke off afterwards.
    """
    shown = [rank.iterations[-SHOWN:] for rank in run.ranks]
    if not all(shown):
        return run.begin_s, run.end_s
    begin_s, end_s = min(each[0].begin_s for each in shown), max(each[-1].end_s for each in shown)
    return begin_s, min(run.end_s, 2 * end_s - begin_s) if run.breaks_off else end_s


def draw_run(axes: Any, run: Run, few: int, seconds: float) -> set[str]:
    """Draw a panel of ``seconds`` with the first few ranks. Returns the kinds of steps in it."""
    (begin_s, until_s), steps, lanes = window_of(run), run.inside.spans, run.lanes
    drawn = set[str]()
    tops = [number * (len(lanes) + GAP) for number in range(min(few, len(run.ranks)))]
    for rank, top in zip(run.ranks, tops, strict=False):
        end_s = until_s if run.breaks_off or not rank.iterations else rank.iterations[-1].end_s
        shown = [cut(spans, begin_s, end_s) for spans in (rank.spans, steps[rank.number])]
        draw_rank(axes, rank, shown, top, (begin_s, begin_s + seconds))
        drawn |= {span.kind for span in shown[1]}
    rows = [top + row for top in tops for row in range(len(lanes))]
    names = [name for rank in run.ranks[:few] for name in (f"{rank.name}  {lanes[0]}", *lanes[1:])]
    axes.set_yticks(rows, names)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, seconds * 1e3), ylim=(rows[-1] + 0.5 + GAP / 2, -0.5 - GAP / 2))
    axes.set(title=f"{label(run.name)}: {told_of(run)}", xlabel="ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return drawn


def told_of(run: Run) -> str:
    if not all(rank.iterations for rank in run.ranks):
        return "it broke off before an iteration was over"
    taken, exposed = map(short_ms, last_iteration(run))
    if run.breaks_off:
        after_s = run.end_s - max(rank.iterations[-1].end_s for rank in run.ranks)
        return f"it broke off {short_ms(after_s)} ms after the last iteration, which took {taken} ms"
    return f"the last iteration takes {taken} ms, of which {exposed} are exposed"


def last_iteration(run: Run) -> tuple[float, float]:
    """Return the last iteration's seconds and exposed seconds, on its slowest rank."""
    longest = max(run.ranks, key=lambda rank: rank.iterations[-1].end_s - rank.iterations[-1].begin_s)
    last = longest.iterations[-1]
    return last.end_s - last.begin_s, sum(span.seconds for span in longest.within(last, "wait"))


def cut(spans: Iterable[Span], begin_s: float, end_s: float) -> list[Span]:
    """Clip spans to a window."""
    shown = (span for span in spans if span.begin_s < end_s and span.end_s > begin_s)
    return [span._replace(begin_s=max(begin_s, span.begin_s), end_s=min(end_s, span.end_s)) for span in shown]


def draw_rank(axes: Any, rank: Rank, shown: Sequence[Sequence[Span]], top: float, window: tuple[float, float]) -> None:
    """Draw a rank's rows in a window of time, with its spans and its step spans."""
    (zero_s, until_s), (spans, steps) = window, shown
    inches = INSIDE * WIDTH_INCHES / (until_s - zero_s or INSTANT_S)
    waits = [((span.begin_s - zero_s) * 1e3, span.seconds * 1e3) for span in spans if span.kind == "wait"]
    axes.broken_barh(waits, (top - 0.5, 2), facecolor=COLORS["wait"], linewidth=0, zorder=0)
    for row, lane in enumerate((COMPUTE, WIRE)):
        own = [span for span in spans if span.lane == lane and span.kind != "wait"]
        draw_row(axes, own, top + row, zero_s, inches)
    if rank.noted:
        draw_row(axes, list(joined(steps, JOINED * (until_s - zero_s))), top + 2, zero_s, inches)
    borders = [*(each.begin_s for each in rank.iterations[-SHOWN:]), *(each.end_s for each in rank.iterations[-1:])]
    at = [(border_s - zero_s) * 1e3 for border_s in borders]
    axes.vlines(at, top - 0.5, top + (3 if rank.noted else 2) - 0.5, color="black", linewidth=1, clip_on=False)
