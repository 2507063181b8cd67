"""Convert a timeline for a page: lanes as integers that ``web/lanes.js`` draws.

A run's time unit is its window over some hundred thousand: finer than a pixel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.contrib.look import (
    COLORS,
    DARK,
    LANES,
    MOST_RANKS,
    MOST_RUNS,
    SAID,
    label,
    last_iteration,
    short,
    window_of,
)
from dear_mpi.training.events.spans import Rank, Run, Timeline

KINDS: Sequence[str] = tuple(COLORS)
UNITS = 200_000  # per window


@dataclass
class Names:
    """Span names and labels, each once."""

    numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, name: tuple[str, str]) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def rows(self) -> list[list[str]]:
        return list(map(list, self.numbers))


def kinds() -> list[dict[str, Any]]:
    """Return kinds of spans: names and colours, as in pictures."""
    return [
        {"name": kind, "said": SAID.get(kind, kind), "color": color, "dark": kind in DARK}
        for kind, color in COLORS.items()
    ]


def lanes_of(timeline: Timeline, names: Names) -> list[dict[str, Any]]:
    few = shown_ranks(timeline)
    return [run_lanes(run, few, names) for run in timeline.runs[:MOST_RUNS]]


def shown_ranks(timeline: Timeline) -> int:
    return max(1, MOST_RANKS // len(timeline.runs[:MOST_RUNS]))


def run_lanes(run: Run, few: int, names: Names) -> dict[str, Any]:
    """Return the last iterations of the first few ranks, and the seconds of the last one."""
    begin_s, end_s = window_of(run)
    unit_s = (end_s - begin_s) / UNITS or 1.0
    taken_s, exposed_s = last_iteration(run)
    ranks = [rank_lanes(rank, begin_s, unit_s, names) for rank in run.ranks[:few]]
    told = {"seconds": end_s - begin_s, "unit": unit_s, "last": taken_s, "exposed": exposed_s}
    return {"name": label(run.name), **told, "ranks": ranks}


def rank_lanes(rank: Rank, zero_s: float, unit_s: float, names: Names) -> dict[str, Any]:
    """Return lane, kind, name, begin and length of each span, and the bounds of iterations."""
    end_s, found = rank.iterations[-1].end_s, list[int]()
    for span in rank.spans:
        begin, end = (round((time - zero_s) / unit_s) for time in (max(span.begin_s, zero_s), min(span.end_s, end_s)))
        if end > begin or zero_s < span.begin_s < end_s:
            name = names.number((span.name, short(span)))
            found += [LANES.index(span.lane), KINDS.index(span.kind), name, begin, end - begin]
    borders = [*(each.begin_s for each in rank.iterations), end_s]
    return {
        "name": rank.name,
        "spans": found,
        "borders": [round((border - zero_s) / unit_s) for border in borders if border >= zero_s],
    }
