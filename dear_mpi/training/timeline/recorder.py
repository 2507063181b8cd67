"""Keep what the last iterations did: the fabrics and the trainer note it, where they were given a recorder.

A note is a label and two marks of a stream; all else is done when it is over. (On a GPU a mark is an event, and a
caller that asks for its time waits for it.) The main thread and the engine's put notes into one queue, from which notes
of older iterations are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from dear_mpi.training.timeline.spans import COMPUTE, KINDS, WIRE, Iteration, Rank, Span, shortened

KEPT = 3  # iterations
Clock: TypeAlias = Callable[[str, Any], float]  # the seconds of a mark of a lane
Pair: TypeAlias = tuple[Any, Any]  # marks of the compute stream


class Note(NamedTuple):
    """A span whose times are still marks; ``number`` counts the iterations that were over when it was made."""

    number: int
    lane: str
    label: str
    begin: Any
    end: Any


class Passed(NamedTuple):
    """An iteration, with pairs of marks around each use of a layer, in the order in which they ran."""

    number: int
    begin: Any
    end: Any
    forward: Sequence[Pair]
    backward: Sequence[Pair]


class Recorder:
    """Collects the notes of one rank.

    Args:
        layers: the name of each use of a layer, in the order of the forward pass.
        kept: how many iterations are kept.
    """

    def __init__(self, layers: Sequence[str], kept: int = KEPT) -> None:
        self.layers, self.kept = tuple(layers), kept
        self.notes = deque[Note]()
        self.iterations = deque[Passed](maxlen=kept)
        self.over = 0  # iterations
        self.lap: Any = None  # the mark after what the engine did last

    def waited(self, what: str, begin: Any, end: Any) -> None:
        """Compute has waited for a collective."""
        self.notes.append(Note(self.over, COMPUTE, f"wait for {what}", begin, end))

    def updated(self, bucket: int, begin: Any, end: Any) -> None:
        """The main thread has updated the parameters of a bucket."""
        self.notes.append(Note(self.over, COMPUTE, f"update of bucket {bucket}", begin, end))

    def began(self, mark: Any) -> None:
        """The engine has begun a plan."""
        self.lap = mark

    def ended(self, what: str, mark: Any) -> None:
        """What the engine has done since the mark before this one."""
        self.carried(what, self.lap, mark)
        self.lap = mark

    def carried(self, what: str, begin: Any, end: Any) -> None:
        """Something was on the wire."""
        self.notes.append(Note(self.over, WIRE, what, begin, end))

    def iterated(self, number: int, marks: Pair, forward: Sequence[Pair], backward: Sequence[Pair]) -> None:
        """An iteration is over, after so many others; see ``Passed``."""
        self.iterations.append(Passed(number, *marks, forward, backward))
        self.over += 1
        while self.notes and self.notes[0].number < self.oldest:
            self.notes.popleft()

    @property
    def oldest(self) -> int:
        """Notes made before so many iterations were over are dropped: one more is kept, as its collectives go on."""
        return self.over - self.kept - 1

    def rank(self, name: str, clock: Clock) -> Rank:
        """What was kept, with its times; nothing is under way any more."""
        iterations = tuple(
            Iteration(each.number, clock(COMPUTE, each.begin), clock(COMPUTE, each.end)) for each in self.iterations
        )
        found = [
            Span(note.lane, kind_of(note.label), shortened(note.label), *(clock(note.lane, mark) for mark in note[-2:]))
            for note in self.notes
        ]
        for each in self.iterations:
            for kind, pairs in (("forward", each.forward), ("backward", each.backward)):
                for layer, pair in zip(self.places(kind, len(pairs)), pairs, strict=True):
                    found.append(Span(COMPUTE, kind, f"{kind} {layer}", *(clock(COMPUTE, mark) for mark in pair)))
        begin_s = iterations[0].begin_s
        kept = (span for span in found if span.end_s > max(begin_s, span.begin_s))
        return Rank(name, iterations, tuple(sorted(kept, key=lambda span: span.begin_s)))

    def places(self, kind: str, count: int) -> Iterator[str]:
        """The layers of so many uses in the order of a pass, with the part of the batch if there are several."""
        ordered = self.layers if kind == "forward" else self.layers[::-1]
        for place in range(count):
            part, use = divmod(place, len(ordered))
            yield ordered[use] + (f", part {part + 1} of {count // len(ordered)}" if count > len(ordered) else "")


def kind_of(label: str) -> str:
    """The kind of what has this label.

    >>> kind_of("all_gather of bucket 0 (layers 0..1, 512 bytes)"), kind_of("all_reduce of the loss")
    ('all_gather', 'other')
    """
    if label.startswith("wait "):
        return "wait"
    kind = label.partition(" of bucket ")[0].rpartition(" ")[2]
    return kind if kind in KINDS else "other"
