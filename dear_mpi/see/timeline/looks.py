"""What pictures of timelines share: colours, sizes, and a row of bars with letters on them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from dear_mpi.training.log.spans import STEPS, Span

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
INSIDE_COLORS = {  # of what is inside of a collective
    "waiting": "#C4C4C4",
    "transfer": "#A6761D",
    "either": "#D9A679",
    "whole": "#AA4499",
    "combining": "#882255",
    "copying": "#88CCEE",
}
SAID = {  # kinds that have another name in a legend
    "wait": "compute waits: exposed",
    "weights": "weights, delayed",
    "other": "loss and other small ones",
    "waiting": "waiting for the peer",
    "either": "waiting or transfer",
    "whole": "in the MPI library",
}
DARK = ("backward", "weights", "update", "transfer", "whole", "combining")  # letters on them are white
MOST_RUNS = 6  # panels of a picture
WIDTH_INCHES = 11.0
INSIDE = 0.88  # of the width, for the rows
BAR = 0.86  # of a row
LINED_INCHES = 0.06  # bars that are narrower on average have no lines around them, which would hide them
LETTER_INCHES = 0.075
JOINED = 0.002  # of the width: spans of one kind and step that are closer are drawn as one


def signs(kinds: Collection[str]) -> list[Any]:
    """What the colours of these kinds mean, for a legend."""
    from matplotlib.patches import Patch

    known = COLORS | INSIDE_COLORS
    return [Patch(color=color, lw=0, label=SAID.get(kind, kind)) for kind, color in known.items() if kind in kinds]


def draw_row(axes: Any, spans: Sequence[Span], row: float, zero_s: float, inches: float) -> None:
    """Bars of one lane, in ms after ``zero_s``; a second takes so many inches."""
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
    """What is written on a span: the name of a layer, or the number of a bucket."""
    if span.kind in ("forward", "backward", "weights"):
        return span.name.removeprefix(f"{span.kind} ").removeprefix("of ")
    return span.name.partition("bucket ")[2].partition(" ")[0]


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
    """The number of the step, if it has one."""
    head, colon, _ = span.name.partition(":")
    return head.removeprefix("step ") if colon else ""
