"""The virtual fabric: a clock, one wire, and a price for each collective. It needs neither MPI nor memory.

    compute   | forward, as long as it is said to take | backward ...      wait: the clock moves on to the end
    wire             | collective | collective |                           one at a time, in the order of the engine

The trainer and the schedules run on it as they do on the live one. It also keeps the book of ``rules.py``, so that a
schedule which would train wrongly, or wait for ever, is refused before the first byte moves.

Where messages and updates need the same processors, an update holds up what is on the wire, and takes longer itself
(``contention``). Whether messages are beside an update is decided by the clock of the last rank, for all ranks.

The clock is one number where all ranks are alike, else a vector over the ranks. A collective begins when the last rank
has started it, and ends on all ranks at once: what a rank can gain by being done a few steps before others is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.fabric.fabric import Fabric
from dear_mpi.training.fabric.order import LOSS, VERDICT, Key, Order, Sequenced, Turn
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.log.log import Event, Log
from dear_mpi.training.routes.legs import Collective, Leg, Update

Price: TypeAlias = Callable[[Collective, Bucket], float]


class Carried(NamedTuple):
    """What is on the wire; sums over all buckets have none."""

    collective: str
    bucket: Bucket | None

    def __str__(self) -> str:
        return self.collective if self.bucket is None else f"{self.collective} of {self.bucket}"

    @property
    def number(self) -> int:
        """Of the bucket, as in the log."""
        return 0 if self.bucket is None else self.bucket.index


Parts: TypeAlias = Sequence[tuple[Carried, float]]  # what is on the wire, and its seconds


def portion_of(bucket: Bucket, portion: Portion) -> Bucket:
    """A bucket that is as long as a portion of one, to be priced."""
    if portion == WHOLE:
        return bucket
    share = (portion.last - portion.first) / portion.of
    return replace(bucket, stop=bucket.start + ceil(bucket.count * share), nbytes=ceil(bucket.nbytes * share))


@dataclass(eq=False)
class VirtualHandle:
    """Legs under way."""

    key: Key
    what: Carried
    submitted_s: Any  # when the schedule has started them, on all ranks or on each
    parts: Callable[[Turn], Parts]  # what is on the wire in a turn, one after the other
    event: Event | None = None  # of the last part, as soon as it is known when that is on the wire


class VirtualFabric(Fabric):
    """Runs a schedule on a clock.

    Args:
        rules: the book of the schedule that runs, with the buckets and the route.
        price: seconds of a collective of a bucket.
        loss_s: seconds of the sum of the loss.
        verdict_s: seconds of the verdict on all gradients.
        update_s: seconds of the update of a whole bucket.
        ranks: their number, who share an update where each updates its shard.
        contention: from the seconds that an update takes alone to its stall, the seconds by which each of them delays
            messages beside it, and its stretch, how many times as long it takes then; None: neither delays the other.
        compute: from nominal seconds to those on each rank.
        kept: how many iterations the log has.

    Attributes:
        clock_s: the time, of all ranks or of each.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        price: Price = lambda leg, bucket: 0.0,
        loss_s: float = 0.0,
        verdict_s: float = 0.0,
        update_s: Callable[[Bucket], float] = lambda bucket: 0.0,
        ranks: int = 1,
        contention: Callable[[float], tuple[float, float]] | None = None,
        compute: Callable[[Any], Any] = lambda seconds: seconds,
        kept: int = 1,
    ) -> None:
        super().__init__(rules.buckets, rules.route, Log(kept), judged=rules.judged)
        self.rules, self.ranks = rules, ranks
        self.price, self.loss_s, self.verdict_s, self.update_s = price, loss_s, verdict_s, update_s
        self.contention, self.compute = contention, compute
        self.moving = list[Event]()  # on the wire, or in the queue for it
        self.clock_s: Any = 0.0
        self.wire_free_s = 0.0
        self.order: Order[VirtualHandle] = Order(None)

    def put_in_order(self, order: Sequenced | None) -> None:
        self.order = self.order.replaced(order)

    def launch(self, key: Key, legs: Sequence[Leg], bucket: Bucket, *, back: bool = False) -> VirtualHandle:
        what = Carried(key[0], bucket)

        def parts(turn: Turn) -> Parts:
            due = legs if turn.begins and turn.ends else self.legs_of(turn, legs)
            part = portion_of(bucket, turn.portion)
            return [(Carried(leg.label, bucket), self.price_of(leg, bucket, part)) for leg in due] or [(what, 0.0)]

        return self.submit(key, what, parts)

    def launch_loss(self) -> VirtualHandle:
        """Put the sum of the loss onto the wire."""
        what = Carried("sum of the loss", None)
        return self.submit(LOSS, what, lambda turn: [(what, self.loss_s)])

    def launch_verdict(self) -> VirtualHandle:
        what = Carried("norm of the gradients", None)
        return self.submit(VERDICT, what, lambda turn: [(what, self.verdict_s)])

    def price_of(self, leg: Leg, bucket: Bucket, part: Bucket) -> float:
        """Seconds of a leg on the engine's thread; what neither communicates nor updates costs nothing."""
        if isinstance(leg, Collective):
            return self.price(leg, part)
        return last(self.own_update_s(leg, bucket)) if isinstance(leg, Update) else 0.0

    def own_update_s(self, leg: Update, bucket: Bucket) -> Any:
        """Seconds of an update that has no messages beside it."""
        return self.compute(self.update_s(bucket) / (self.ranks if leg.shard else 1))

    def submit(self, key: Key, what: Carried, parts: Callable[[Turn], Parts]) -> VirtualHandle:
        """Let it go onto the wire, when its turn has come."""
        handle = VirtualHandle(key, what, self.clock_s, parts)
        self.forget_what_is_over()
        for turn, each in self.order.submit(key, handle):
            begin_s = max(self.wire_free_s, last(each.submitted_s))
            for part, seconds in each.parts(turn):
                event = self.log.carried(part.collective, part.number, begin_s, begin_s + seconds, part)
                begin_s += seconds
                if self.contention is not None:
                    self.moving.append(event)
            self.wire_free_s = begin_s
            if turn.ends:
                each.event, each.parts = event, lambda turn: ()  # no cycle: a book keeps handles, and parts know this
        return handle

    def wait_for(self, handle: VirtualHandle) -> None:
        """Move the clock on to the end of what was started."""
        what = handle.what
        if handle.event is None:
            said = f"waits for the {what} though it has not started what comes before"
            self.rules.refuse(f"{said}, {self.order.next}: it would wait for ever")
        begin_s, self.clock_s = self.clock_s, later(self.clock_s, handle.event.end)
        self.log.waited(what.collective, what.number, begin_s, self.clock_s, what)

    def do(self, leg: Leg, bucket: Bucket, factor: float) -> None:
        """Let an update take its time, and hold up messages beside it."""
        if not isinstance(leg, Update):
            return
        taken_s = self.own_update_s(leg, bucket)
        if self.contention is not None:
            stall, stretch = self.contention(last(taken_s))
            meanwhile_s = self.beside_messages(last(taken_s), stretch - stall)
            self.hold_up(stall * meanwhile_s)
            taken_s = taken_s + (stretch - 1) * sooner(taken_s, meanwhile_s)
        begin_s, self.clock_s = self.clock_s, self.clock_s + taken_s
        self.log.did("update", bucket.index, begin_s, self.clock_s, bucket)

    def beside_messages(self, seconds: float, gain: float) -> float:
        """For how many of the seconds that an update takes alone there are messages beside it; in each of them the
        messages get on by ``gain`` seconds."""
        busy_s = max(0.0, self.wire_free_s - last(self.clock_s))
        return min(seconds, busy_s / gain if gain > 0 else seconds if busy_s else 0.0)

    def hold_up(self, delay_s: float) -> None:
        """What is on the wire takes longer there; what queues for it begins later, too."""
        self.forget_what_is_over()
        for each in self.moving:
            each.begin += delay_s * (each.begin > last(self.clock_s))
            each.end += delay_s
        self.wire_free_s += delay_s

    def forget_what_is_over(self) -> None:
        """From now on nothing can hold it up."""
        now_s = last(self.clock_s)
        self.moving = [each for each in self.moving if each.end > now_s]

    def spend(self, seconds: Any) -> None:
        """Let time pass: something is computed."""
        self.clock_s = self.clock_s + self.compute(seconds)

    def now(self) -> Any:
        return self.clock_s

    def seconds(self, begin: Any, end: Any) -> Any:
        return end - begin


def later(times_s: Any, bound_s: float) -> Any:
    """Times that are not before a bound; of a number, NumPy would take many times as long."""
    return max(times_s, bound_s) if isinstance(times_s, float) else np.maximum(times_s, bound_s)


def sooner(times_s: Any, bound_s: float) -> Any:
    """Times that are not after a bound."""
    return min(times_s, bound_s) if isinstance(times_s, float) else np.minimum(times_s, bound_s)


def last(times_s: Any) -> float:
    """The time of the last rank."""
    return times_s if isinstance(times_s, float) else float(times_s.max())


def of_rank(times_s: Any, rank: int) -> float:
    """The time of one rank, where there is one for all or one for each."""
    return float(times_s) if np.ndim(times_s) == 0 else float(times_s[rank])
