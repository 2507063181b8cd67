"""Log the events of a rank in the last iterations, each between two time marks.

    main thread   | forward 0 | forward 1 | backward 1 | backward 0 | wait for all_reduce 0 | update 0 |
    engine's thread                       | all_reduce 1   | all_reduce 0             |

Marks come from a stream or the virtual clock. On a GPU a mark is an event, and reading its time blocks until it occurs:
the log reads no mark before its iteration is over.

The main thread and the engine append to separate lists, so neither waits for the other.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.collectives.plans.notes import Notes
from dear_mpi.kernels.array import Array

Seconds: TypeAlias = Callable[[Any, Any], Any]  # from one mark to another; on the virtual fabric perhaps over ranks
KEPT = 3  # iterations
EXCHANGE = "exchange"  # of a layer, before a pass; its number is the number of the use


@dataclass(slots=True, eq=False)
class Event:
    """Record one action of a rank."""

    kind: str  # ``forward``, ``backward``, ``weights``, ``wait``, ``update``; for the engine see ``Step``
    number: int  # of the layer call (use), or of the bucket
    begin: Any  # marks
    end: Any
    what: Any = ""  # the carried or awaited object, printed by ``str``; for an update the bucket
    awaited: str = ""  # for a wait: the awaited kind
    since: Any = None  # for the engine's first step: when the main thread handed it over


@dataclass(slots=True, eq=False)
class Record:
    """Record an iteration: its events, and later ones up to the next iteration."""

    number: int  # number of earlier iterations; -1 before the first
    begin: Any = None  # marks; no end while it runs
    end: Any = None
    within: list[Event] = field(default_factory=list)  # by the main thread, during the iteration
    after: list[Event] = field(default_factory=list)  # by the main thread, afterwards
    engine: list[Event] = field(default_factory=list)  # by the engine, from the iteration's beginning


class Log:
    """Hold the events of one rank.

    Args:
        kept: number of iterations. The previous one is also kept, since its collectives continue.

    Attributes:
        records: of the iterations, the last at the end.
        notes: details of the engine's collectives.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.notes = Notes()
        self.records = deque([Record(-1)], maxlen=kept + 1)
        self.main = self.records[-1].after  # destination of the main thread's events

    def keep(self, kept: int) -> None:
        self.records = deque(self.records, maxlen=kept + 1)

    @property
    def last(self) -> Record:
        return self.records[-1]

    def begin(self, number: int, mark: Any) -> None:
        self.records.append(Record(number, mark))
        self.main = self.last.within

    def end(self, mark: Any) -> None:
        self.last.end = mark
        self.main = self.last.after

    def did(self, kind: str, number: int, begin: Any, end: Any, what: object = "") -> None:
        self.main.append(Event(kind, number, begin, end, what))

    def waited(self, awaited: str, number: int, begin: Any, end: Any, what: object) -> None:
        self.main.append(Event("wait", number, begin, end, what, awaited))

    def carried(self, kind: str, number: int, begin: Any, end: Any, what: object, *, since: Any = None) -> Event:
        event = Event(kind, number, begin, end, what, since=since)
        self.last.engine.append(event)
        return event


COUNTS_AS = {"weights": "backward"}  # a kind, and the kind that contains it


class Times(NamedTuple):
    """Split the seconds of one iteration on this rank; ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


def times_of(record: Record, seconds: Seconds) -> Times:
    """Return the times of a finished iteration, without waits between iterations."""
    taken = dict.fromkeys(("forward", "backward", "wait"), 0.0)
    for event in record.within:
        kind = COUNTS_AS.get(event.kind, event.kind)
        if kind in taken:
            taken[kind] = taken[kind] + seconds(event.begin, event.end)
    return Times(seconds(record.begin, record.end), *taken.values())


def uses_s(events: Iterable[Event], kind: str, seconds: Seconds) -> list[float]:
    """List the seconds of each layer call in the order of execution, forward or backward."""
    return [seconds(event.begin, event.end) for event in events if event.kind == kind]


def sums_s(events: Iterable[Event], kind: str, seconds: Seconds, uses: int) -> Array:
    """Sum the seconds of a kind for each layer call, in forward order."""
    found = np.zeros(uses)
    for event in events:
        if event.kind == kind:
            found[event.number] += seconds(event.begin, event.end)
    return found


def pass_s(record: Record, seconds: Seconds, uses: int) -> Array:
    """Return the seconds of each layer call in one pass: forward, backward, weights (part of backward), exchange.

    For a batch in parts: the first part's forward, which waits, and the last part's backward, which sends.
    """
    forward_s, backward_s = (uses_s(record.within, kind, seconds) for kind in ("forward", "backward"))
    weights_s = sums_s(record.within, "weights", seconds, uses)
    exchange_s = sums_s(record.engine, EXCHANGE, seconds, uses) / (2 * len(forward_s) / uses)
    return np.array([forward_s[:uses], backward_s[-uses:][::-1] + weights_s, weights_s, exchange_s])


def waits_s(record: Record, seconds: Seconds) -> dict[str, Any]:
    """Return an iteration's exposed seconds for each collective."""
    found: dict[str, Any] = defaultdict(float)
    for event in record.within:
        if event.kind == "wait":
            found[event.awaited] = found[event.awaited] + seconds(event.begin, event.end)
    return found


def middle(rows: Array, ends: int, *, by: int) -> Array:
    """Average rows without the ``ends`` smallest and largest by one column.

    >>> middle(np.array([[3.0], [9.0], [1.0], [2.0]]), 1, by=0).tolist()
    [2.5]
    """
    mean: Array = np.mean(rows[rows[:, by].argsort(kind="stable")][ends : len(rows) - ends], axis=0)
    return mean
