"""The exercises: what a cell is about, and what the page checks. A check returns what is missing; "" if it is right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dear_mpi.reporting.units import BYTES, SECONDS
from docs.lecture.desk import checks

Check: TypeAlias = Callable[[Any], str]


@dataclass(frozen=True)
class Exercise:
    """``given`` is what the cell is run with: the ranks and the collective of an algorithm, the ``Setting`` of a
    schedule."""

    kind: str  # algorithm, schedule, route, formula or number
    check: Check
    given: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()  # schedules that are drawn beside the reader's
    breaks: bool = False  # whether something wrong is asked for
    races: bool = False  # whether the reader's algorithm is timed beside ours
    units: dict[str, float] = field(default_factory=dict)  # of a number; without one it is in that of the question
    example: str = ""  # of an answer's form, not of its value


GATHER = {"ranks": 4, "collective": "all_gather", "sizes": (2, 3, 4, 5, 6)}
REDUCE = {"ranks": 8, "collective": "all_reduce", "sizes": (2, 4, 8)}
FOUR, SIX = ({"layers": count, "buckets": count, "ratio": 3.0, "startup_ms": 0.0} for count in (4, 6))
KILOBYTES = {"": 1.0, "kb": 1.0, "mb": 1e3} | {unit: BYTES[unit] / 1e3 for unit in ("b", "kib", "mib")}
MILLISECONDS = {"": 1.0} | {unit: seconds * 1e3 for unit, seconds in SECONDS.items()}
COUNT = dict.fromkeys(("", "bucket", "buckets"), 1.0)
EXERCISES = {
    "ring": Exercise("algorithm", checks.is_a_ring, GATHER),
    "price": Exercise("formula", checks.prices_a_ring),
    "crossing": Exercise("number", checks.is_the_crossing, units=KILOBYTES, example="120 kB"),
    "overlap": Exercise("schedule", checks.overlaps, FOUR, ("sequential",)),
    "dear": Exercise("schedule", checks.feeds_the_forward_pass, FOUR, ("wfbp",)),
    "order": Exercise("schedule", checks.is_eager, SIX, ("dear",)),
    "buckets": Exercise("number", checks.is_the_best_cut, units=COUNT, example="2 buckets"),
    "route": Exercise("route", checks.sends_values),
    "break": Exercise("algorithm", checks.breaks_on_three, GATHER, breaks=True),
    "race": Exercise("algorithm", checks.wins_with_small_buffers, REDUCE, races=True),
    "rule": Exercise("number", checks.is_the_bound, units=MILLISECONDS, example="120 ms"),
}
