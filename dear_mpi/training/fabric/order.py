"""In which order the collectives of an iteration go onto the wire: as they are started, or as was decided in advance.

All ranks must put the same collectives onto the wire in the same order, or they wait for each other for ever. First
in, first out is such an order as long as all ranks start alike, which schedules do. An order decided in advance lets
what is needed soonest go first, though it is ready last.

Why no rank can deadlock: a rank begins the k-th collective of the order when the earlier ones are over there and its
schedule has started it. Suppose that all ranks are stuck, and take one that has come least far, to the k-th. No other
rank keeps it waiting, since all have come as far. So its schedule has not started the k-th collective, and waits for a
later one. That depends on the schedule alone, not on time: the virtual fabric meets it too, and refuses the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

from dear_mpi.training.routes.route import reduces

Key: TypeAlias = tuple[str, int]  # a collective, and the index of its bucket
LOSS: Key = ("loss", 0)  # its sum over the ranks is started after the forward pass
VERDICT: Key = ("verdict", 0)  # on the gradients, after the last reduction
T = TypeVar("T")


def completed(order: Sequence[Key] | None, *, judged: bool = False) -> list[Key] | None:
    """The order of a schedule, and what comes without it: the loss first, a verdict after the last reduction.

    >>> completed([("reduce_scatter", 0), ("all_gather", 0)], judged=True)
    [('loss', 0), ('reduce_scatter', 0), ('verdict', 0), ('all_gather', 0)]
    """
    if order is None:
        return None
    last = max((number for number, (collective, _) in enumerate(order) if reduces(collective)), default=-1)
    return [LOSS, *order[: last + 1], *([VERDICT] if judged else []), *order[last + 1 :]]


class Order(Generic[T]):
    """Says which collective has its turn.

    Args:
        keys: the collectives of an iteration, again and again; None for first in, first out.

    Raises:
        ValueError: the all_gather of a bucket comes before its reduce_scatter.

    >>> order = Order([("all_gather", 0), ("all_gather", 1)])
    >>> order.submit(("all_gather", 1), "early"), order.submit(("all_gather", 0), "late")
    ([], ['late', 'early'])
    """

    def __init__(self, keys: Sequence[Key] | None = None) -> None:
        self.keys = None if keys is None else tuple(keys)
        self.known: set[Key] = set()
        for collective, bucket in reversed(self.keys or ()):
            if collective == "all_gather" and ("reduce_scatter", bucket) in self.known:
                raise ValueError(f"the order lets the all_gather of bucket {bucket} go before its reduce_scatter")
            self.known.add((collective, bucket))
        self.position = 0
        self.waiting: dict[Key, T] = {}

    @property
    def next(self) -> str:
        """The collective whose turn it is."""
        return "any" if not self.keys else "the {} of bucket {}".format(*self.keys[self.position])

    def submit(self, key: Key, item: T) -> list[T]:
        """Take an item; return the items whose turn has come with it, in order.

        Raises:
            ValueError: the order has no such collective, or one that is under way.
        """
        if self.keys is None:
            return [item]
        if key not in self.known or key in self.waiting:
            what = "is waiting for its turn" if key in self.waiting else "is not in the order of the iteration"
            raise ValueError("the {} of bucket {} was started, but {}".format(*key, what))
        self.waiting[key] = item
        turn = []
        while (key := self.keys[self.position]) in self.waiting:
            turn.append(self.waiting.pop(key))
            self.position = (self.position + 1) % len(self.keys)
        return turn

    def replaced(self, keys: Sequence[Key] | None) -> Order[T]:
        """This order, or another one, which begins anew.

        Raises:
            ValueError: an iteration is not over.
        """
        if keys == self.keys or (keys is not None and tuple(keys) == self.keys):
            return self
        if self.waiting or self.position:
            raise ValueError(f"the order cannot be changed within an iteration: it is the turn of {self.next}")
        return Order(keys)
