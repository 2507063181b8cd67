"""Draw the steps of collectives: a row per rank, coloured by activity, with step numbers.

rank 0   |0 transfer|0 combining|1 transfer| ...
rank 1   |::::: waiting for rank 0 :::::|0 transfer| ...
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear_mpi.collectives.plans.steps import Ranks
from dear_mpi.reporting.units import plural
from dear_mpi.see.figure import INSTANT_S, legend_below, panels, short_ms
from dear_mpi.see.timeline.picture import INSIDE, JOINED, MOST_RUNS, WIDTH_INCHES, draw_row, joined, signs
from dear_mpi.see.timeline.trace import clock_of
from dear_mpi.see.timeline.write import write_timeline
from dear_mpi.training.log.spans import Rank, Run, Span, Timeline

MOST_RANKS = 16  # over all panels
ROW_INCHES, PANEL_INCHES = 0.3, 0.85
HOW_TO_READ = "numbers are those of steps; of each collective, the run of median length"


def write_steps(paths: Sequence[Path], title: str, runs: Mapping[str, Ranks], uncertainty_s: float) -> None:
    write_timeline("--timeline", paths, timeline_of(title, runs, uncertainty_s), draw_steps)


def timeline_of(title: str, runs: Mapping[str, Ranks], uncertainty_s: float) -> Timeline:
    """Return a timeline of named collectives, with each rank's events on one clock."""
    found = []
    for name, each in runs.items():
        ranks = (Rank(f"rank {number}", (), (), number, (noted,)) for number, noted in each.items())
        found.append(Run(name, tuple(ranks), len(each), uncertainty_s))
    return Timeline(live=True, runs=tuple(found), facts={"title": title})


def draw_steps(timeline: Timeline) -> Any:
    """Draw a panel per collective with its first few ranks; all panels have the longest one's duration."""
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
        notes="; ".join(
            [HOW_TO_READ, f"clock: {clock_of(timeline)}", *[f"not shown: {' and '.join(left)}"] * bool(left)]
        ),
    )
    longest_s = max(run.end_s - run.begin_s for run in runs) or INSTANT_S
    shown = [run.inside.spans for run in runs]
    for panel, run, spans in zip(axes, runs, shown, strict=True):
        draw_run(panel, run, {rank.number: spans[rank.number] for rank in run.ranks[:few]}, longest_s)
    legend_below(figure, signs({span.kind for spans in shown for each in spans.values() for span in each}))
    return figure


def draw_run(axes: Any, run: Run, spans: Mapping[int, Sequence[Span]], seconds: float) -> None:
    """Draw a panel of ``seconds`` with the spans of its first ranks."""
    for row, own in enumerate(spans.values()):
        bars = list(joined(own, JOINED * seconds))
        draw_row(axes, bars, row, run.begin_s, INSIDE * WIDTH_INCHES / seconds)
    axes.set_yticks(range(len(spans)), [rank.name for rank in run.ranks[: len(spans)]])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, seconds * 1e3), ylim=(len(spans) - 0.5, -0.5), xlabel="ms")
    axes.set_title(f"{run.name}: {short_ms(run.end_s - run.begin_s)} ms")
    axes.spines[["top", "right", "left"]].set_visible(False)
