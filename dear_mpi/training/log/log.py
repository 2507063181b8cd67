"""One list of events, of the last iterations: what a rank did, from which mark to which.

    main thread   | forward 0 | forward 1 | backward 1 | backward 0 | wait for all_reduce 0 | update 0 |
    wire                                  | all_reduce 1   | all_reduce 0             |

A mark is what a stream or the clock of the virtual fabric gives. On a GPU it is an event, and who asks for its time
waits for it: so marks are kept as they are until an iteration is over.

The main thread and the engine's thread append to lists of their own, so neither waits for the other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

KEPT = 3  # iterations


@dataclass(slots=True, eq=False)
class Event:
    """Something that a rank did.

    Attributes:
        kind: ``forward``, ``backward``, ``wait`` or ``update``; on the wire, what is there (a key's first part).
        number: of the use of a layer, or of the bucket.
        begin, end: marks.
        what: what is carried, or waited for, as ``str`` says it; of an update the bucket.
        awaited: the kind of event that a wait is for.
    """

    kind: str
    number: int
    begin: Any
    end: Any
    what: Any = ""
    awaited: str = ""


@dataclass(slots=True, eq=False)
class Record:
    """An iteration: its events, and those up to the beginning of the next one.

    Attributes:
        number: how many iterations were over before it; -1 for what comes before the first.
        begin, end: marks; no end as long as it runs.
        within: what the main thread did in it.
        after: what the main thread did after it.
        wire: what the engine did from its beginning on.
    """

    number: int
    begin: Any = None
    end: Any = None
    within: list[Event] = field(default_factory=list)
    after: list[Event] = field(default_factory=list)
    wire: list[Event] = field(default_factory=list)


class Log:
    """The events of one rank.

    Args:
        kept: how many iterations are kept. The one before them is kept, too, since its collectives go on.

    Attributes:
        records: of the iterations, the last one at the end.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.records = deque([Record(-1)], maxlen=kept + 1)
        self.main = self.records[-1].after  # where the main thread's events go

    @property
    def last(self) -> Record:
        """The iteration that runs, or was the last."""
        return self.records[-1]

    def begin(self, number: int, mark: Any) -> None:
        """An iteration begins."""
        self.records.append(Record(number, mark))
        self.main = self.last.within

    def end(self, mark: Any) -> None:
        """It is over."""
        self.last.end = mark
        self.main = self.last.after

    def did(self, kind: str, number: int, begin: Any, end: Any, what: object = "") -> None:
        """The main thread has run a layer, or updated a bucket."""
        self.main.append(Event(kind, number, begin, end, what))

    def waited(self, awaited: str, number: int, begin: Any, end: Any, what: object) -> None:
        """The main thread has waited."""
        self.main.append(Event("wait", number, begin, end, what, awaited))

    def carried(self, kind: str, number: int, begin: Any, end: Any, what: object) -> Event:
        """Something was on the wire."""
        event = Event(kind, number, begin, end, what)
        self.last.wire.append(event)
        return event
