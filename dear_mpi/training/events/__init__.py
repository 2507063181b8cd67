"""Log the events of a rank in the last iterations, each between two time marks.

    main thread   | forward 0 | forward 1 | backward 1 | backward 0 | wait for all_reduce 0 | update 0 |
    engine's thread                       | all_reduce 1   | all_reduce 0             |

Reading a GPU's mark blocks until its event occurs: the log reads none before its iteration is over. The two threads
append to separate lists, so neither waits.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.collectives.plans.notes import Notes
from dear_mpi.kernels.array import Array

Seconds: TypeAlias = Callable[[Any, Any], Any]  # between marks; on the virtual fabric perhaps of each rank
KEPT = 3  # iterations
EXCHANGE = "exchange"  # of a layer, before a pass


@dataclass(slots=True, eq=False)
class Event:
    kind: str  # ``forward``, ``backward``, ``weights``, ``wait``, ``update``; for the engine see ``Step``
    number: int  # of the layer call, or of the bucket
    begin: Any  # marks
    end: Any
    what: Any = ""  # carried or awaited, printed by ``str``; of an update the bucket
    awaited: str = ""  # kind, by a wait
    since: Any = None  # of the engine's first step: the handover


@dataclass(slots=True, eq=False)
class Record:
    """Record an iteration, up to the next one."""

    number: int  # of earlier iterations; -1 before the first
    begin: Any = None  # marks; no end while it runs
    end: Any = None
    within: list[Event] = field(default_factory=list)  # by the main thread, during the iteration
    after: list[Event] = field(default_factory=list)  # by the main thread, afterwards
    engine: list[Event] = field(default_factory=list)  # by the engine, from the iteration's beginning


class Log:
    """Hold the events of one rank, of ``kept`` iterations and of the one before, since its collectives continue.

    ``notes`` are details of the engine's collectives.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.notes = Notes()
        self.records = deque([Record(-1)], maxlen=kept + 1)
        self.main = self.records[-1].after  # where the main thread's events go

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


class Times(NamedTuple):
    """Split an iteration's seconds; ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


def kind_of(event: Event) -> str:
    return "backward" if event.kind == "weights" else event.kind


def fold(events: Iterable[Event], seconds: Seconds, by: Callable[[Event], Any] = kind_of) -> dict[Any, Any]:
    """Add up the seconds of events by a key."""
    found: dict[Any, Any] = defaultdict(float)
    for event in events:
        found[by(event)] += seconds(event.begin, event.end)
    return found


def times_of(record: Record, seconds: Seconds) -> Times:
    """Return the times of a finished iteration, without waits after it."""
    taken = fold(record.within, seconds)
    return Times(seconds(record.begin, record.end), taken["forward"], taken["backward"], taken["wait"])


def waits_s(record: Record, seconds: Seconds) -> dict[str, Any]:
    """Return the exposed seconds of each collective."""
    return fold((event for event in record.within if event.kind == "wait"), seconds, lambda event: event.awaited)


def middle(rows: Array, ends: int, *, by: int) -> Array:
    """Average rows without the ``ends`` smallest and largest by one column.

    >>> middle(np.array([[3.0], [9.0], [1.0], [2.0]]), 1, by=0).tolist()
    [2.5]
    """
    mean: Array = np.mean(rows[rows[:, by].argsort(kind="stable")][ends : len(rows) - ends], axis=0)
    return mean
