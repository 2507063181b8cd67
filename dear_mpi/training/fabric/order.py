"""Order the engine's work: as started, or as decided in advance.

All ranks must run the same collectives in the same order, or they hang. First in, first out suffices if all ranks start
alike. An order decided in advance puts urgent collectives first even if they are ready last. It may interrupt a
collective, which then has a turn for each portion (``collectives/lowering/messages.py``).

No rank can deadlock: take a stuck rank that has come least far, to the k-th collective. No other rank keeps it waiting,
so its schedule has not started the k-th, and waits for a later one. That depends only on the schedule, not on time: the
virtual fabric detects it and refuses the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.events import EXCHANGE
from dear_mpi.training.routes.route import reduces
from dear_mpi.training.routes.stages import Collective, Stage

Key: TypeAlias = tuple[str, int]  # a collective and a bucket's index; or an exchange and a layer call
LOSS: Key = ("loss", 0)  # the sum over ranks, started after the forward pass
VERDICT: Key = ("verdict", 0)  # the global gradient check, after the last reduction
SUMS = {LOSS: "all_reduce of the loss", VERDICT: "all_reduce of the statistics"}  # without a bucket
T = TypeVar("T")


class Turn(NamedTuple):
    """Name a bucket's collective, or a portion of it."""

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


Sequenced: TypeAlias = Sequence[Key | Turn]  # a bare key: the whole collective


class Step(NamedTuple):
    kind: str  # name and bucket as in the log, like the next two
    number: int
    what: object
    act: Any  # the action; on the virtual fabric its seconds


class Delayed(NamedTuple):
    """Hold a layer call that has yet to write its weight gradients."""

    call: int
    write: Callable[[], None]


@dataclass(eq=False)
class Handle:
    key: Key
    label: str  # in logs and errors
    # By turn; None when over: ``Rules`` keeps handles, and steps refer to their fabric.
    steps: Callable[[Turn], Sequence[Step]] | None


def turns_of(keys: Iterable[Key]) -> list[Key | Turn]:
    """Number the portions in an order that repeats a collective for each; merge neighbours.

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
    """Add the loss at the start; the check (``judged``) after all reductions.

    If ``returns``, a way back that no schedule starts follows each all_reduce, or the check.
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


def sliced(turn: Turn, stages: Sequence[Stage]) -> list[Stage]:
    """Select a turn's stages: before the collective in the first turn, after it in the last."""
    at = next((number for number, stage in enumerate(stages) if isinstance(stage, Collective)), len(stages))
    before, after = stages[:at] if turn.begins else (), stages[at + 1 :] if turn.ends else ()
    return [*before, *stages[at : at + 1], *after]


class Order(Generic[T]):
    """Decide which collective has its turn.

    ``turns``: of every iteration; None for first in, first out.

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
        return "any" if not self.turns else "the {} of bucket {}".format(*self.turns[self.position])

    def submit(self, key: Key, item: T) -> list[tuple[Turn, T]]:
        """Take an item; return the turns that can now run, with their items.

        An exchange needs no turn: all ranks submit it at the same place.
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
        """Return this order if equal, else a new one; ValueError within an iteration."""
        if self.turns == whole(turns):
            return self
        if self.waiting or self.position:
            raise ValueError(f"the order cannot be changed within an iteration: it is the turn of {self.next}")
        return Order(turns)


def whole(turns: Sequenced | None) -> tuple[Turn, ...] | None:
    return None if turns is None else tuple(Turn(*turn) for turn in turns)
