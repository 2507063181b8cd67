"""A run of messages whose calls are timed: what a rank does in each step of its program, and when.

A recorded run is bound anew, with a clock around each call. The run that it is made of stays as it is, so recording
costs nothing where nobody records.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, TypeVar

from dear_mpi.collectives.plans.execution import Action, BoundInstruction
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.transports.transport import Request

T = TypeVar("T")


class Part(NamedTuple):
    """What a call of a run does; ``message`` is a number into ``MessagesRun.listing.messages``."""

    kind: str  # starting or ending (a message), combining, copying
    step: int
    message: int


class Note(NamedTuple):
    """A call, and its times, in seconds."""

    part: Part
    begin_s: float
    end_s: float


class RecordedRun(MessagesRun):
    """The same run, on the same memory, whose blocking runs (``whole``) append to ``notes``; free it after use.

    The two share side buffers, so a run of one must be over when a run of the other begins. A note costs two looks at
    the clock and a tuple.
    """

    def __init__(self, run: MessagesRun, clock: Callable[[], float] = perf_counter) -> None:
        vars(self).update(vars(run))
        self.clock, self.notes = clock, list[Note]()
        self.bind_all()

    def noted(self, kind: str, number: int, call: Callable[[], T]) -> Callable[[], T]:
        part = Part(kind, self.listing.messages[number].key[0], number)
        clock, note = self.clock, self.notes.append

        def timed() -> T:
            begin_s = clock()
            result = call()
            note(Note(part, begin_s, clock()))
            return result

        return timed

    def bound(self, requests: Sequence[Request]) -> Iterator[BoundInstruction]:
        return super().bound([NotedRequest(self, number, request) for number, request in enumerate(requests)])

    def merge(self, group: Sequence[int]) -> Action:
        kind = "combining" if self.listing.messages[group[0]].combine else "copying"
        return self.noted(kind, group[0], super().merge(group))

    def lift(self, number: int) -> list[Action]:
        return [self.noted("copying", number, action) for action in super().lift(number)]


class NotedRequest:
    """A request whose start and wait are noted; not its tests, each of which may say that it is not over yet."""

    def __init__(self, run: RecordedRun, number: int, request: Request) -> None:
        self.Start = run.noted("starting", number, request.Start)
        self.Wait = run.noted("ending", number, request.Wait)
        self.Test, self.Free = request.Test, request.Free
