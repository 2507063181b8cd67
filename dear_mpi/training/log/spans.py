"""A timeline: what each rank of a run, or of several, did and when. Plain values, the same for live and virtual runs.

rank 0  compute   | forward conv1 | forward fc | backward fc | wait for ... | update of bucket 0 |
        wire                                         | all_reduce of bucket 0 (layers 0..1, 4.2 MiB) |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

__all__ = ["COMPUTE", "KINDS", "LANES", "WIRE", "Iteration", "Rank", "Run", "Span", "Timeline", "common", "shortened"]

COMPUTE, WIRE = LANES = ("compute", "wire")  # the main thread, and the engine's
KINDS = ("forward", "backward", "wait", "update", "reduce_scatter", "all_gather", "all_reduce", "other")


class Span(NamedTuple):
    """Something that a rank did from one time to another, in seconds; spans of one lane do not overlap.

    ``kind`` is one of ``KINDS``: of a collective its name, or ``other`` for the sums of the loss and of the norm.
    """

    lane: str
    kind: str
    name: str
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.begin_s


class Iteration(NamedTuple):
    """From the beginning of the forward pass to the end of the backward pass and of what the schedule does there."""

    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Rank:
    """What one rank did, by its own clock, or what all did where they are alike; spans in the order of their beginning.

    Spans may begin before the first iteration, and end after the last one.
    """

    name: str
    iterations: tuple[Iteration, ...]
    spans: tuple[Span, ...]

    def within(self, iteration: Iteration, kind: str) -> Iterator[Span]:
        """The spans of a kind whose middle is in an iteration."""
        for span in self.spans:
            if span.kind == kind and 2 * iteration.begin_s <= span.begin_s + span.end_s <= 2 * iteration.end_s:
                yield span


@dataclass(frozen=True)
class Run:
    """The last iterations of one schedule, on all ranks, or on some of very many.

    Attributes:
        name: what tells it from the other runs of a timeline.
        size: how many ranks there were.
    """

    name: str
    ranks: tuple[Rank, ...]
    size: int

    @cached_property
    def begin_s(self) -> float:
        """When the first of all spans begins."""
        times = [span.begin_s for rank in self.ranks for span in rank.spans[:1]]
        return min([*times, *(rank.iterations[0].begin_s for rank in self.ranks)])


@dataclass(frozen=True)
class Timeline:
    """Runs, and what there is to say of all of them.

    Attributes:
        live: whether times were measured; otherwise they are predicted.
        facts: names and values, such as the model and the network.
    """

    live: bool
    runs: tuple[Run, ...]
    facts: dict[str, Any] = field(default_factory=dict)


def common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is the same in all rows, by name; of the others the value of each row.

    >>> common([{"model": "cnn", "schedule": "wfbp"}, {"model": "cnn", "schedule": "dear"}])
    {'model': 'cnn', 'schedule': ['wfbp', 'dear']}
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: found[0] if all(each == found[0] for each in found) else found for name, found in columns.items()}


def shortened(label: str) -> str:
    """A label with its size as people read it.

    >>> shortened("all_reduce of bucket 3 (layers 8..12, 4404019 bytes)"), shortened("fc1 (512 bytes)")
    ('all_reduce of bucket 3 (layers 8..12, 4.2 MiB)', 'fc1 (0.5 KiB)')
    """
    return re.sub(r"(\d+) bytes", lambda found: rounded_size(int(found[1])), label)


def rounded_size(nbytes: int) -> str:
    """Bytes with one digit after the point."""
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"
