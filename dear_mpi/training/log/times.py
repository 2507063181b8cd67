"""What iterations took: seconds of what a log has of them.

``seconds`` is the function from two marks to the time between them. On the virtual fabric times may be vectors over the
ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.training.log.log import Event, Record

Seconds = Callable[[Any, Any], Any]


class Times(NamedTuple):
    """Where the seconds of one iteration went, on this rank; ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


def times_of(record: Record, seconds: Seconds) -> Times:
    """Of an iteration that is over; waits between iterations do not count."""
    taken = dict.fromkeys(("forward", "backward", "wait"), 0.0)
    for event in record.within:
        if event.kind in taken:
            taken[event.kind] = taken[event.kind] + seconds(event.begin, event.end)
    return Times(seconds(record.begin, record.end), *taken.values())


def uses_s(events: Iterable[Event], kind: str, seconds: Seconds) -> list[float]:
    """Of each use of a layer, in the order in which they ran: forward, or backward."""
    return [seconds(event.begin, event.end) for event in events if event.kind == kind]


def pass_s(record: Record, seconds: Seconds, uses: int) -> Array:
    """Of each of so many uses of layers in one pass, forward and backward, in the order of the forward pass.

    Of a batch in parts: the first part's forward pass, which waits, and the last part's backward pass, which sends.
    """
    forward_s, backward_s = (uses_s(record.within, kind, seconds) for kind in ("forward", "backward"))
    return np.array([forward_s[:uses], backward_s[-uses:][::-1]])


def waits_s(record: Record, seconds: Seconds) -> dict[str, Any]:
    """Exposed seconds in an iteration, for each collective."""
    found: dict[str, Any] = defaultdict(float)
    for event in record.within:
        if event.kind == "wait":
            found[event.awaited] = found[event.awaited] + seconds(event.begin, event.end)
    return found
