"""The steps of collectives as a picture: a row for each rank, coloured by what it does; numbers are those of steps.

rank 0   |0 transfer|0 combining|1 transfer| ...
rank 1   |::::: waiting for rank 0 :::::|0 transfer| ...
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import INSTANT_S, legend_below, panels, short_ms
from dear_mpi.see.timeline.picture import BAR, INSIDE, LETTER_INCHES, LINED_INCHES, MOST_RUNS, WIDTH_INCHES
from dear_mpi.training.log.spans import COMPUTE, WIRE, Rank, Run, Span, Timeline

COLORS = {  # of each kind, in the order of the legend; as in pictures of training, compute is blue
    "waiting": "#D55E0047",
    "transfer": "#E69F00",
    "combining": "#0072B2",
    "copying": "#56B4E9",
}
SAID = {"waiting": "waiting until the peer has started its message", "combining": "combining what came"}
LETTERS_ON = {"combining": "white"}
LANES_OF = {"waiting": WIRE, "transfer": WIRE, "combining": COMPUTE, "copying": COMPUTE}
MOST_RANKS = 16  # in all panels together
ROW_INCHES, PANEL_INCHES = 0.3, 0.85
HOW_TO_READ = "numbers are those of steps; of each collective, the run of median length"
JOINED = 0.002  # of the width: spans of one kind and step that are closer are drawn as one


def timeline_of(title: str, runs: Mapping[str, Sequence[Sequence[Any]]], clocks: str) -> Timeline:
    """A timeline of collectives by their names, with the spans of each rank: kind, step, peer, begin and end."""
    ranks = {name: tuple(map(rank_of, itertools.count(), each)) for name, each in runs.items()}
    found = tuple(Run(name, each, len(each)) for name, each in ranks.items())
    return Timeline(live=True, runs=found, facts={"title": title, "clocks": clocks})


def rank_of(number: int, spans: Sequence[Any]) -> Rank:
    named = [
        Span(LANES_OF[kind], kind, f"step {step}: {kind}, rank {peer}", begin_s, end_s)
        for kind, step, peer, begin_s, end_s in spans
        if end_s > begin_s
    ]
    return Rank(f"rank {number}", (), tuple(named))


def draw_steps(timeline: Timeline) -> Any:
    """A panel for each collective, with the first few ranks, all as long as the longest."""
    from matplotlib.patches import Patch

    runs, more = timeline.runs[:MOST_RUNS], len(timeline.runs) - MOST_RUNS
    few = max(2, MOST_RANKS // len(runs))
    most = max(min(few, len(run.ranks)) for run in runs)
    left = [f"ranks from {few} on"] * any(len(run.ranks) > few for run in runs)
    left += [plural(more, "more collective")] * (more > 0)
    figure, axes = panels(
        len(runs),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most),
        title=timeline.facts["title"],
        notes="; ".join([HOW_TO_READ, *[f"not shown: {' and '.join(left)}"] * bool(left)]),
    )
    longest_s = max(map(seconds_of, runs)) or INSTANT_S
    for panel, run in zip(axes, runs, strict=True):
        draw_run(panel, run, few, longest_s)
    there = {span.kind for run in runs for rank in run.ranks for span in rank.spans}
    signs = [Patch(color=color, lw=0, label=SAID.get(kind, kind)) for kind, color in COLORS.items() if kind in there]
    legend_below(figure, signs)
    return figure


def seconds_of(run: Run) -> float:
    return max((span.end_s for rank in run.ranks for span in rank.spans), default=run.begin_s) - run.begin_s


def draw_run(axes: Any, run: Run, few: int, seconds: float) -> None:
    """A panel of so many seconds."""
    ranks, zero_s = run.ranks[:few], run.begin_s
    for row, rank in enumerate(ranks):
        spans = (span._replace(begin_s=span.begin_s - zero_s, end_s=span.end_s - zero_s) for span in rank.spans)
        draw_rank(axes, list(joined(spans, JOINED * seconds)), row, INSIDE * WIDTH_INCHES / seconds)
    axes.set_yticks(range(len(ranks)), [rank.name for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, seconds * 1e3), ylim=(len(ranks) - 0.5, -0.5), xlabel="ms")
    axes.set_title(f"{run.name}: {short_ms(seconds_of(run))} ms")
    axes.spines[["top", "right", "left"]].set_visible(False)


def joined(spans: Iterable[Span], apart_s: float) -> Iterator[Span]:
    """Spans of one rank, with neighbours of the same kind and step put together, as segments of a chunk have them."""
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
    return span.name.removeprefix("step ").partition(":")[0]


def draw_rank(axes: Any, spans: Sequence[Span], row: int, inches: float) -> None:
    """The row of a rank; a second takes so many inches."""
    for kind, color in COLORS.items():
        own = [span for span in spans if span.kind == kind]
        lined = sum(span.seconds for span in own) * inches > LINED_INCHES * len(own)
        look = {"facecolor": color, "edgecolor": "white", "linewidth": 0.5 * lined}
        axes.broken_barh([(span.begin_s * 1e3, span.seconds * 1e3) for span in own], (row - BAR / 2, BAR), **look)
        for span in own:
            text = step_of(span)
            if LETTER_INCHES * (len(text) + 1) < span.seconds * inches:
                middle = (span.begin_s + span.end_s) / 2 * 1e3
                letters = {"ha": "center", "va": "center_baseline", "fontsize": 7}
                axes.text(middle, row, text, color=LETTERS_ON.get(kind, "black"), **letters)
