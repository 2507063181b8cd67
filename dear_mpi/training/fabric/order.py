"""What the engine has to do, and in which order: as it is started, or as was decided in advance.

All ranks must carry the same collectives out in the same order, or they wait for each other for ever. First in, first
out is such an order as long as all ranks start alike, which schedules do. An order decided in advance lets
what is needed soonest go first, though it is ready last. It may also break a collective off, and go on with it later:
then the collective has several turns, of a portion each (``collectives/lowering/messages.py``).

Why no rank can deadlock: a rank begins the k-th collective of the order when the earlier ones are over there and its
schedule has started it. Suppose that all ranks are stuck, and take one that has come least far, to the k-th. No other
rank keeps it waiting, since all have come as far. So its schedule has not started the k-th collective, and waits for a
later one. That depends on the schedule alone, not on time: the virtual fabric meets it too, and refuses the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.log.log import EXCHANGE
from dear_mpi.training.routes.legs import Collective, Leg
from dear_mpi.training.routes.route import reduces

Key: TypeAlias = tuple[str, int]  # a collective, and the index of its bucket; or an exchange, and the number of a use
LOSS: Key = ("loss", 0)  # its sum over the ranks is started after the forward pass
VERDICT: Key = ("verdict", 0)  # on the gradients, after the last reduction
SUMS = {LOSS: "all_reduce of the loss", VERDICT: "all_reduce of the statistics"}  # what is of no bucket
T = TypeVar("T")


class Turn(NamedTuple):
    """A collective of a bucket, or a portion of it; its first turn begins the collective, its last one ends it."""

    collective: str
    bucket: int
    portion: Portion = WHOLE

    @property
    def key(self) -> Key:
        return self[:2]

    @property
    def begins(self) -> bool:
        return self.portion.first == 0

    @property
    def ends(self) -> bool:
        return self.portion.last == self.portion.of


Sequenced: TypeAlias = Sequence[Key | Turn]  # an order; a key alone is the whole collective


class Step(NamedTuple):
    """What the engine does at a time."""

    kind: str  # as in the log, like the next two
    number: int
    what: object
    act: Any  # what does it; on the virtual fabric the seconds that it takes


class Delayed(NamedTuple):
    """What a layer has left for later of its backward pass."""

    use: int
    write: Callable[[], None]


@dataclass(eq=False)
class Handle:
    """What was started. Schedules wait for it through their fabric, which takes the time."""

    key: Key
    label: str  # in logs and errors
    # Of each of its turns; None when it is over, for a book keeps handles, and steps know their fabric.
    steps: Callable[[Turn], Sequence[Step]] | None


def turns_of(keys: Iterable[Key]) -> list[Key | Turn]:
    """An order in which a collective stands as often as it has portions; those that are neighbours are one turn.

    >>> turns_of([("reduce_scatter", 1), ("reduce_scatter", 1), ("reduce_scatter", 0), ("reduce_scatter", 1)])[0]
    Turn(collective='reduce_scatter', bucket=1, portion=Portion(first=0, last=2, of=3))
    """
    listed = list(keys)
    of, done = Counter(listed), Counter[Key]()
    found: list[Key | Turn] = []
    for key, group in groupby(listed):
        count, first = len(list(group)), done[key]
        found.append(key if of[key] == count else Turn(*key, Portion(first, first + count, of[key])))
        done[key] += count
    return found


def completed(order: Sequenced, *, judged: bool, returns: bool) -> list[Key | Turn]:
    """An order with what comes by itself: the loss first, since it is ready first; the verdict after all reductions.

    Args:
        judged: whether there is a verdict, before all ways back.
        returns: whether an all_reduce has a way back of its own, which no schedule starts: it comes right after, or in
            the order of need after the verdict.
    """
    backs: dict[Key | Turn, Key] = {}
    if returns:
        backs = {each: ("all_gather", each[1]) for each in order if each[0] == "all_reduce" and Turn(*each).ends}
    if judged:
        last = max((number for number, (collective, *_) in enumerate(order) if reduces(collective)), default=-1)
        return [LOSS, *order[: last + 1], VERDICT, *order[last + 1 :], *sorted(backs.values())]
    found: list[Key | Turn] = [LOSS]
    for each in order:
        found += [each, backs[each]] if each in backs else [each]
    return found


def sliced(turn: Turn, legs: Sequence[Leg]) -> list[Leg]:
    """The legs of one turn. The first turn has those before the collective, the last one those after it."""
    at = next((number for number, leg in enumerate(legs) if isinstance(leg, Collective)), len(legs))
    before, after = legs[:at] if turn.begins else (), legs[at + 1 :] if turn.ends else ()
    return [*before, *legs[at : at + 1], *after]


class Order(Generic[T]):
    """Says which collective has its turn.

    Args:
        turns: the collectives of an iteration, again and again; None for first in, first out.

    Raises:
        ValueError: the all_gather of a bucket comes before its reduce_scatter.

    >>> order = Order([("all_gather", 0), ("all_gather", 1)])
    >>> order.submit(("all_gather", 1), "early"), [item for _, item in order.submit(("all_gather", 0), "late")]
    ([], ['late', 'early'])
    """

    def __init__(self, turns: Sequenced | None = None) -> None:
        self.turns = whole(turns)
        self.known: set[Key] = set()
        for collective, bucket, _ in reversed(self.turns or ()):
            if collective == "all_gather" and ("reduce_scatter", bucket) in self.known:
                raise ValueError(f"the order lets the all_gather of bucket {bucket} go before its reduce_scatter")
            self.known.add((collective, bucket))
        self.position = 0
        self.waiting: dict[Key, T] = {}

    @property
    def next(self) -> str:
        """The collective whose turn it is."""
        return "any" if not self.turns else "the {} of bucket {}".format(*self.turns[self.position])

    def submit(self, key: Key, item: T) -> list[tuple[Turn, T]]:
        """Take an item; return the turns that have come with it, and their items. An exchange does not wait for a turn:
        all ranks submit alike, so it has the same place on all.

        Raises:
            ValueError: the order has no such collective, or one that is under way.
        """
        if self.turns is None or key[0] == EXCHANGE:
            return [(Turn(*key), item)]
        if key not in self.known or key in self.waiting:
            what = "is waiting for its turn" if key in self.waiting else "is not in the order of the iteration"
            raise ValueError("the {} of bucket {} was started, but {}".format(*key, what))
        self.waiting[key] = item
        come = []
        while (turn := self.turns[self.position]).key in self.waiting:
            come.append((turn, self.waiting.pop(turn.key) if turn.ends else self.waiting[turn.key]))
            self.position = (self.position + 1) % len(self.turns)
        return come

    def replaced(self, turns: Sequenced | None) -> Order[T]:
        """This order, or another one, which begins anew; ValueError if an iteration is not over."""
        if self.turns == whole(turns):
            return self
        if self.waiting or self.position:
            raise ValueError(f"the order cannot be changed within an iteration: it is the turn of {self.next}")
        return Order(turns)


def whole(turns: Sequenced | None) -> tuple[Turn, ...] | None:
    return None if turns is None else tuple(Turn(*turn) for turn in turns)
