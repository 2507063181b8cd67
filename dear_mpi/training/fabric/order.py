"""Order the engine's work: as started, or as decided in advance.

All ranks must run the same collectives in the same order, or they hang. First in, first out suffices if all ranks start
alike. An order decided in advance puts urgent collectives first even if they are ready last. It may interrupt a
collective, which then has a turn for each portion (``collectives/lowering/messages.py``).

No rank can deadlock: take a stuck rank that has come least far, to the k-th collective. No other rank keeps it waiting,
so its schedule has not started the k-th, and waits for a later one. That depends only on the schedule, not on time: the
virtual fabric detects it and refuses the schedule.

The lookahead of schedules orders an iteration by list scheduling:

    backward   | 3 | 2 | 1 | 0 | forward: 0 needs bucket 0 first, then 1, ...
    network    | L | RS 3 | RS 2 | RS 1 | RS 0 | AG 0 | AG 1 | ...      one at a time; RS b before AG b

When the network is free, the most urgent ready collective (or portion) goes next, to its end. The network never idles
while one is ready. The loss sum (L) goes first.

Source: Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, groupby
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.buckets.layout import Bucket
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


Steps: TypeAlias = Callable[[Turn], Sequence[Step]]


class Delayed(NamedTuple):
    """Hold a layer call that has yet to write its weight gradients."""

    call: int
    write: Callable[[], None]


@dataclass(eq=False)
class Handle:
    key: Key
    label: str  # in logs and errors
    # By turn; None when over: ``Rules`` keeps handles, and steps refer to their fabric.
    steps: Steps | None


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


PORTION_BYTES = 2 << 20  # 1.7 ms at 10 Gbit/s: the longest wait of an urgent collective
MOST_PORTIONS = 1024  # of 2 GiB: an order, a list, is tried several times


@dataclass(frozen=True)
class Nominal:
    """Hold what a schedule knows when it orders its iteration: costs of ranks of equal speed."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    price: Callable[[str, Bucket], float]  # seconds, with updates and codes
    judged: bool = False  # all gradients are checked before use
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1
    weights_s: Mapping[int, float] = field(default_factory=dict)
    exchange_s: Mapping[int, float] = field(default_factory=dict)
    loss_s: float = 0.0


@dataclass(frozen=True)
class Chain:
    keys: tuple[Key, ...]
    seconds: tuple[float, ...]  # by key
    ready_s: float  # when the first can begin
    urgency: int  # smallest first


def portions_of(nbytes: int, ranks: int, segment_bytes: int) -> int:
    """Return the most portions of a collective: each has a segment of every chunk.

    >>> portions_of(PORTION_BYTES, 2, 1024), portions_of(PORTION_BYTES + 1, 2, 1024), portions_of(1 << 24, 64, 1 << 18)
    (1, 2, 1)
    """
    return max(1, min(-(-nbytes // PORTION_BYTES), -(-nbytes // (ranks * segment_bytes)), MOST_PORTIONS))


def chains_of(
    buckets: Iterable[Bucket], collectives: Sequence[str], nominal: Nominal, *, broken: bool = False
) -> list[Chain]:
    """Chain these collectives (or portions) of each bucket, ready with its gradients; urgent if needed soon."""
    ready_s = list(accumulate(reversed(nominal.backward_s)))[::-1]  # when each layer call has run backward
    found = []
    for bucket in buckets:
        counts = [nominal.portions(each, bucket) if broken else 1 for each in collectives]
        parts = [(each, count) for each, count in zip(collectives, counts, strict=True) for _ in range(count)]
        keys = tuple((each, bucket.index) for each, _ in parts)
        seconds = tuple(nominal.price(each, bucket) / count for each, count in parts)
        found.append(Chain(keys, seconds, ready_s[bucket.calls[0]], urgency=bucket.calls[0]))
    return found


def list_scheduled(chains: Iterable[Chain], *, loss_s: float = 0.0, committed: int = 1) -> list[Key]:
    """Order chains on one network, after the loss sum.

    ``committed`` collectives, the loss and the running one included, cannot be overtaken.

    >>> late = Chain((("reduce_scatter", 1), ("all_gather", 1)), (3.0, 3.0), 0.0, urgency=1)

    >>> urgent = Chain((("reduce_scatter", 0), ("all_gather", 0)), (1.0, 1.0), 2.0, urgency=0)
    >>> [f"{collective} {bucket}" for collective, bucket in list_scheduled([late, urgent])]
    ['reduce_scatter 1', 'reduce_scatter 0', 'all_gather 0', 'all_gather 1']
    """
    coming = [(chain.ready_s, chain.urgency, number, chain, 0) for number, chain in enumerate(chains)]
    heapify(coming)
    ready: list[tuple[int, int, Chain, int]] = []
    order: list[Key] = []
    ends = [0.0, loss_s]
    while coming or ready:
        now_s = ends[-committed] if len(ends) >= committed else 0.0  # room for one more
        if not ready:
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            _, urgency, number, chain, part = heappop(coming)
            heappush(ready, (urgency, number, chain, part))
        _, number, chain, part = heappop(ready)
        order.append(chain.keys[part])
        ends.append(max(ends[-1], now_s) + chain.seconds[part])
        if part + 1 < len(chain.keys):
            heappush(coming, (ends[-1], chain.urgency, number, chain, part + 1))
    return order
