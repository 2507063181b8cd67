"""Draw a timeline: rows for each rank, the last two iterations, exposed time shaded.

rank 0  compute   | forward         |::::wait::::| backward        |
        wire            | all_gather |   | reduce_scatter |
        steps           |0|0|1|1|2|2 |   |0|0|1|1|2|2     |      if measured; numbers are step numbers

``bench --steps`` has only the last row.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from dear_mpi.contrib.look import (
    COLORS,
    DARK,
    MOST_RANKS,
    MOST_RUNS,
    SAID,
    SHOWN,
    STEPS,
    clock_of,
    label,
    lanes_in,
    last_iteration,
    origins,
    short,
    steps_in,
    title_of,
    window_of,
)
from dear_mpi.contrib.pictures.figure import INSTANT_S, legend_below, panels, short_ms, upright, write_figure
from dear_mpi.reporting.units import plural
from dear_mpi.training.events.spans import COMPUTE, WIRE, Rank, Run, Span, Timeline

INSIDE_COLORS = {
    "waiting": "#C4C4C4",
    "transfer": "#A6761D",
    "either": "#D9A679",
    "whole": "#AA4499",
    "combining": "#882255",
    "copying": "#88CCEE",
}
WIDTH_INCHES = 11.0
ROW_INCHES, PANEL_INCHES = 0.24, 0.95
MOST_IN_TITLE = 3
GAP = 0.5  # of a row, between ranks
INSIDE = 0.88  # of the width, for rows
BAR = 0.86  # of a row
LINED_INCHES = 0.06  # borders would hide narrower bars
LETTER_INCHES = 0.075
JOINED = 0.002  # of the width: closer spans of one kind and step are merged


def signs(kinds: Collection[str]) -> list[Any]:
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


def joined(spans: Iterable[Span], apart_s: float) -> list[Span]:
    """Merge a rank's neighbouring spans of equal kind and step, such as segments of a chunk."""
    found = list[Span]()
    for span in spans:
        last = found[-1] if found else span._replace(kind="")
        if (last.kind, step_of(last)) == (span.kind, step_of(span)) and span.begin_s - last.end_s < apart_s:
            found[-1] = last._replace(end_s=span.end_s)
        else:
            found.append(span)
    return found


def step_of(span: Span) -> str:
    head, colon, _ = span.name.partition(":")
    return head.removeprefix("step ") if colon else ""


def write_timeline(flag: str, path: Path, timeline: Timeline) -> None:
    write_figure(flag, path, (draw_steps if "title" in timeline.facts else draw_timeline)(timeline))


def draw_timeline(timeline: Timeline) -> Any:
    runs = timeline.runs[:MOST_RUNS]
    few = max(1, MOST_RANKS // len(runs))
    most = max(min(few, len(run.ranks)) for run in runs)
    notes = [title_of(timeline), *origins(timeline, few)]
    if any(STEPS in lanes_in(run) for run in runs):
        notes[-1] += f", in the row below those of steps; clock: {clock_of(timeline)}"
    if not timeline.live and 2 <= len(runs) <= MOST_IN_TITLE:  # single live iterations are too noisy
        (first_s, first), *others = sorted((last_iteration(run)[0], label(run.name)) for run in runs)
        behind = [f"{short_ms(taken_s)} under {name}" for taken_s, name in others]
        notes.insert(0, ", ".join([f"An iteration takes {short_ms(first_s)} ms under {first}", *behind]))
    figure, axes = panels(
        len(runs),
        columns=1,
        inches=(WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most * (max(len(lanes_in(run)) for run in runs) + GAP)),
        title=notes[0],
        notes="\n".join(notes[1:]),
    )
    longest_s = max(end_s - begin_s for begin_s, end_s in map(window_of, runs)) or INSTANT_S
    drawn = set().union(*(draw_run(panel, run, few, longest_s) for panel, run in zip(axes, runs, strict=True)))
    kinds = {span.kind for run in runs for rank in run.ranks for span in rank.spans}
    legend_below(figure, [*signs(drawn | kinds), upright("an iteration begins or ends")])
    return figure


def draw_run(axes: Any, run: Run, few: int, seconds: float) -> set[str]:
    """Draw a panel of ``seconds`` with the first few ranks. Returns the kinds of steps in it."""
    (begin_s, until_s), steps, lanes = window_of(run), steps_in(run), lanes_in(run)
    drawn = set[str]()
    tops = [number * (len(lanes) + GAP) for number in range(min(few, len(run.ranks)))]
    for rank, top in zip(run.ranks, tops, strict=False):
        end_s = rank.iterations[-1].end_s if rank.iterations else until_s
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
    return f"the last iteration takes {taken} ms, of which {exposed} are exposed"


def cut(spans: Iterable[Span], begin_s: float, end_s: float) -> list[Span]:
    shown = (span for span in spans if span.begin_s < end_s and span.end_s > begin_s)
    return [span._replace(begin_s=max(begin_s, span.begin_s), end_s=min(end_s, span.end_s)) for span in shown]


def draw_rank(axes: Any, rank: Rank, shown: Sequence[Sequence[Span]], top: float, window: tuple[float, float]) -> None:
    (zero_s, until_s), (spans, steps) = window, shown
    inches = INSIDE * WIDTH_INCHES / (until_s - zero_s or INSTANT_S)
    waits = [((span.begin_s - zero_s) * 1e3, span.seconds * 1e3) for span in spans if span.kind == "wait"]
    axes.broken_barh(waits, (top - 0.5, 2), facecolor=COLORS["wait"], linewidth=0, zorder=0)
    for row, lane in enumerate((COMPUTE, WIRE)):
        own = [span for span in spans if span.lane == lane and span.kind != "wait"]
        draw_row(axes, own, top + row, zero_s, inches)
    if rank.noted:
        draw_row(axes, joined(steps, JOINED * (until_s - zero_s)), top + 2, zero_s, inches)
    borders = [*(each.begin_s for each in rank.iterations[-SHOWN:]), *(each.end_s for each in rank.iterations[-1:])]
    at = [(border_s - zero_s) * 1e3 for border_s in borders]
    axes.vlines(at, top - 0.5, top + (3 if rank.noted else 2) - 0.5, color="black", linewidth=1, clip_on=False)


def draw_steps(timeline: Timeline) -> Any:
    """Draw a panel per collective with its first few ranks; all panels have the longest one's duration."""
    runs, more = timeline.runs[:MOST_RUNS], len(timeline.runs) - MOST_RUNS
    few = max(2, MOST_RANKS // len(runs))
    most = max(min(few, len(run.ranks)) for run in runs)
    left = [f"ranks from {few} on"] * any(len(run.ranks) > few for run in runs)
    left += [plural(more, "more collective")] * (more > 0)
    notes = ["numbers are those of steps; of each collective, the run of median length", f"clock: {clock_of(timeline)}"]
    notes += [f"not shown: {' and '.join(left)}"] * bool(left)
    inches = WIDTH_INCHES, PANEL_INCHES + ROW_INCHES * most
    figure, axes = panels(len(runs), columns=1, inches=inches, title=timeline.facts["title"], notes="; ".join(notes))
    longest_s = max(run.end_s - run.begin_s for run in runs) or INSTANT_S
    shown = [steps_in(run) for run in runs]
    for panel, run, spans in zip(axes, runs, shown, strict=True):
        draw_collective(panel, run, {rank.number: spans[rank.number] for rank in run.ranks[:few]}, longest_s)
    legend_below(figure, signs({span.kind for spans in shown for each in spans.values() for span in each}))
    return figure


def draw_collective(axes: Any, run: Run, spans: Mapping[int, Sequence[Span]], seconds: float) -> None:
    for row, own in enumerate(spans.values()):
        draw_row(axes, joined(own, JOINED * seconds), row, run.begin_s, INSIDE * WIDTH_INCHES / seconds)
    axes.set_yticks(range(len(spans)), [rank.name for rank in run.ranks[: len(spans)]])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, seconds * 1e3), ylim=(len(spans) - 0.5, -0.5), xlabel="ms")
    axes.set_title(f"{run.name}: {short_ms(run.end_s - run.begin_s)} ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
