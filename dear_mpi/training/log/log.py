"""One list of events, of the last iterations: what a rank did, from which mark to which.

    main thread   | forward 0 | forward 1 | backward 1 | backward 0 | wait for all_reduce 0 | update 0 |
    engine's thread                       | all_reduce 1   | all_reduce 0             |

A mark is what a stream or the clock of the virtual fabric gives. On a GPU it is an event, and who asks for its time
waits for it: so marks are kept as they are until an iteration is over.

The main thread and the engine's thread append to lists of their own, so neither waits for the other.
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
EXCHANGE = "exchange"  # of a layer, before a pass; its number is that of the use


@dataclass(slots=True, eq=False)
class Event:
    """Something that a rank did."""

    kind: str  # ``forward``, ``backward``, ``weights``, ``wait``, ``update``; of the engine what it does, see ``Step``
    number: int  # of the use of a layer, or of the bucket
    begin: Any  # marks
    end: Any
    what: Any = ""  # what is carried, or waited for, as ``str`` says it; of an update the bucket
    awaited: str = ""  # the kind of event, of a wait
    since: Any = None  # of the engine's first step of something: when the main thread had handed it over


@dataclass(slots=True, eq=False)
class Record:
    """An iteration: its events, and those up to the beginning of the next one."""

    number: int  # how many iterations were over before it; -1 for what comes before the first
    begin: Any = None  # marks; no end as long as it runs
    end: Any = None
    within: list[Event] = field(default_factory=list)  # what the main thread did in it
    after: list[Event] = field(default_factory=list)  # what the main thread did after it
    engine: list[Event] = field(default_factory=list)  # what the engine did from its beginning on


class Log:
    """The events of one rank.

    Args:
        kept: how many iterations. The one before them is kept, too, since its collectives go on.

    Attributes:
        records: of the iterations, the last one at the end.
        notes: of what the engine's collectives did inside.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.notes = Notes()
        self.records = deque([Record(-1)], maxlen=kept + 1)
        self.main = self.records[-1].after  # where the main thread's events go

    def keep(self, kept: int) -> None:
        """From now on keep so many iterations."""
        self.records = deque(self.records, maxlen=kept + 1)

    @property
    def last(self) -> Record:
        """The iteration that runs, or was the last."""
        return self.records[-1]

    def begin(self, number: int, mark: Any) -> None:
        self.records.append(Record(number, mark))
        self.main = self.last.within

    def end(self, mark: Any) -> None:
        self.last.end = mark
        self.main = self.last.after

    def did(self, kind: str, number: int, begin: Any, end: Any, what: object = "") -> None:
        """The main thread has run a layer, or updated a bucket."""
        self.main.append(Event(kind, number, begin, end, what))

    def waited(self, awaited: str, number: int, begin: Any, end: Any, what: object) -> None:
        """The main thread has waited for an event of this kind."""
        self.main.append(Event("wait", number, begin, end, what, awaited))

    def carried(self, kind: str, number: int, begin: Any, end: Any, what: object, *, since: Any = None) -> Event:
        """The engine has done something."""
        event = Event(kind, number, begin, end, what, since=since)
        self.last.engine.append(event)
        return event


COUNTS_AS = {"weights": "backward"}  # what is a part of what


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
        kind = COUNTS_AS.get(event.kind, event.kind)
        if kind in taken:
            taken[kind] = taken[kind] + seconds(event.begin, event.end)
    return Times(seconds(record.begin, record.end), *taken.values())


def uses_s(events: Iterable[Event], kind: str, seconds: Seconds) -> list[float]:
    """Of each use of a layer, in the order in which they ran: forward, or backward."""
    return [seconds(event.begin, event.end) for event in events if event.kind == kind]


def sums_s(events: Iterable[Event], kind: str, seconds: Seconds, uses: int) -> Array:
    """Of each of so many uses of layers, in the order of the forward pass: all that it did of a kind."""
    found = np.zeros(uses)
    for event in events:
        if event.kind == kind:
            found[event.number] += seconds(event.begin, event.end)
    return found


def pass_s(record: Record, seconds: Seconds, uses: int) -> Array:
    """Of each of so many uses of layers in one pass: forward, backward, its weights' part of that, and an exchange.

    Of a batch in parts: the first part's forward pass, which waits, and the last part's backward pass, which sends.
    """
    forward_s, backward_s = (uses_s(record.within, kind, seconds) for kind in ("forward", "backward"))
    weights_s = sums_s(record.within, "weights", seconds, uses)
    exchange_s = sums_s(record.engine, EXCHANGE, seconds, uses) / (2 * len(forward_s) / uses)
    return np.array([forward_s[:uses], backward_s[-uses:][::-1] + weights_s, weights_s, exchange_s])


def waits_s(record: Record, seconds: Seconds) -> dict[str, Any]:
    """Exposed seconds in an iteration, for each collective."""
    found: dict[str, Any] = defaultdict(float)
    for event in record.within:
        if event.kind == "wait":
            found[event.awaited] = found[event.awaited] + seconds(event.begin, event.end)
    return found


def middle(rows: Array, ends: int, *, by: int) -> Array:
    """The mean of rows without so many at either end, in the order of a column.

    >>> middle(np.array([[3.0], [9.0], [1.0], [2.0]]), 1, by=0).tolist()
    [2.5]
    """
    mean: Array = np.mean(rows[rows[:, by].argsort(kind="stable")][ends : len(rows) - ends], axis=0)
    return mean
