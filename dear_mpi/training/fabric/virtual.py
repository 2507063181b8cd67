"""The virtual fabric: a clock, one wire, and a price for each collective. It needs neither MPI nor memory.

    compute   | forward, as long as it is said to take | backward ...      wait: the clock moves on to the end
    wire             | collective | collective |                           one at a time, in the order of the engine

The trainer and the schedules run on it as they do on the live one. It also keeps the book of ``rules.py``, so that a
schedule which would train wrongly, or wait for ever, is refused before the first byte moves.

Where messages and updates need the same processors, an update holds up what is on the wire, and takes longer itself
(``Slowdown``). Whether messages are beside an update is decided by the clock of the last rank, for all ranks.

The clock is one number where all ranks are alike, else a vector over the ranks. A collective begins when the last rank
has started it, and ends on all ranks at once: what a rank can gain by being done a few steps before others is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dear_mpi.training.fabric.order import LOSS, Key, Order, completed
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.timeline.recorder import Recorder

Price = Callable[[str, Bucket], float]


class Slowdown(NamedTuple):
    """What an update and the messages beside it do to each other.

    Attributes:
        stall: seconds by which each second of the update delays what is on the wire.
        stretch: how many times as long the update takes.
    """

    stall: float = 0.0
    stretch: float = 1.0


@dataclass(eq=False)
class VirtualHandle:
    """A collective under way (the sum of the loss has no bucket), and when it has ended, if that is known."""

    collective: str
    bucket: Bucket | None
    submitted_s: Any  # float, or over ranks
    price_s: float
    begin_s: float = 0.0  # on the wire
    end_s: float | None = None

    def __str__(self) -> str:
        return self.collective if self.bucket is None else f"{self.collective} of {self.bucket}"

    def wait(self) -> None:
        """Nothing: the fabric moves the clock."""


@dataclass(frozen=True)
class Wait:
    """What the compute of a rank, or of each of several, has waited for."""

    handle: VirtualHandle
    exposed_s: Any  # float, or over ranks


class VirtualFabric:
    """Runs a schedule on a clock.

    Args:
        rules: the book of the schedule that runs, with the buckets.
        price: seconds of a collective of a bucket, also of one of ``EXTRAS``.
        loss_s: seconds of the sum of the loss.
        update_s: seconds of the update of a bucket.
        slowdown: from the seconds that an update takes alone to what it and messages beside it do to each other; None:
            nothing.
        compute: from nominal seconds to those on each rank.

    Attributes:
        clock_s: the time, of all ranks or of each.
        updated_s: what all updates have taken so far, on all ranks or on each.
        waited: what ``exposed_s`` has added up.
    """

    loss_scale = 1.0
    recorder: Recorder | None = None

    def __init__(
        self,
        rules: Rules,
        *,
        price: Price = lambda collective, bucket: 0.0,
        loss_s: float = 0.0,
        update_s: Callable[[Bucket], float] = lambda bucket: 0.0,
        slowdown: Callable[[float], Slowdown] | None = None,
        compute: Callable[[Any], Any] = lambda seconds: seconds,
    ) -> None:
        self.rules, self.buckets = rules, rules.buckets
        self.price, self.loss_s, self.update_s, self.compute = price, loss_s, update_s, compute
        self.slowdown, self.moving = slowdown, list[VirtualHandle]()
        self.clock_s: Any = 0.0
        self.updated_s: Any = 0.0
        self.wire_free_s = 0.0
        self.waits: list[Wait] = []
        self.waited: list[Wait] = []
        self.order: Order[VirtualHandle] = Order(None)

    def follow(self, order: Sequence[Key] | None) -> None:
        """Let collectives go onto the wire in this order."""
        self.order = self.order.replaced(completed(order))

    def start(self, collective: str, bucket: Bucket) -> VirtualHandle:
        """Put a collective onto the wire, when its turn has come."""
        handle = VirtualHandle(collective, bucket, self.clock_s, self.price(collective, bucket))
        self.rules.start(collective, bucket, handle)
        self.submit((collective, bucket.index), handle)
        return handle

    def negotiate(self, bucket: Bucket) -> None:
        """Put what says that a bucket is ready onto the wire."""
        self.rules.negotiate(bucket)
        handle = VirtualHandle("negotiation", bucket, self.clock_s, self.price("negotiation", bucket))
        self.submit(("negotiation", bucket.index), handle)

    def gather_again(self, bucket: Bucket) -> VirtualHandle:
        """Put another all-gather onto the wire."""
        self.rules.gather_again(bucket)
        handle = VirtualHandle("all_gather", bucket, self.clock_s, self.price("second all_gather", bucket))
        self.submit(("second all_gather", bucket.index), handle)
        return handle

    def start_loss(self) -> VirtualHandle:
        """The same for the sum of the loss."""
        handle = VirtualHandle("sum of the loss", None, self.clock_s, self.loss_s)
        self.submit(LOSS, handle)
        return handle

    def submit(self, key: Key, handle: VirtualHandle) -> None:
        for each in self.order.submit(key, handle):
            each.begin_s = max(self.wire_free_s, last(each.submitted_s))
            self.wire_free_s = each.end_s = each.begin_s + each.price_s
            if self.slowdown is not None:
                self.moving.append(each)

    def wait(self, handle: VirtualHandle) -> None:
        """Move the clock on to the end of a collective."""
        if handle.end_s is None:
            what = f"waits for the {handle} though it has not started what comes before"
            self.rules.refuse(f"{what}, {self.order.next}: it would wait for ever")
        self.waits.append(Wait(handle, later(handle.end_s - self.clock_s, 0.0)))
        self.clock_s = later(self.clock_s, handle.end_s)
        if handle.bucket is not None:
            self.rules.awaited(handle.collective, handle.bucket, handle)

    def update(self, bucket: Bucket) -> None:
        """Update a bucket, which takes its time."""
        self.rules.update(bucket)
        taken_s = self.compute(self.update_s(bucket))
        if self.slowdown is not None:
            stall, stretch = self.slowdown(last(taken_s))
            meanwhile_s = self.beside_messages(last(taken_s), stretch - stall)
            self.hold_up(stall * meanwhile_s)
            taken_s = taken_s + (stretch - 1) * sooner(taken_s, meanwhile_s)
        self.updated_s = self.updated_s + taken_s
        self.clock_s = self.clock_s + taken_s

    def beside_messages(self, seconds: float, gain: float) -> float:
        """For how many of the seconds that an update takes alone there are messages beside it; in each of them the
        messages get on by ``gain`` seconds."""
        busy_s = max(0.0, self.wire_free_s - last(self.clock_s))
        return min(seconds, busy_s / gain if gain > 0 else seconds if busy_s else 0.0)

    def hold_up(self, delay_s: float) -> None:
        """Delay what is on the wire, or queues for it."""
        now_s = last(self.clock_s)
        ends = [(each, each.end_s) for each in self.moving if each.end_s is not None and each.end_s > now_s]
        for each, end_s in ends:
            each.end_s = end_s + delay_s
        self.moving = [each for each, _ in ends]
        self.wire_free_s += delay_s

    def spend(self, seconds: Any) -> None:
        """Let time pass: something is computed."""
        self.clock_s = self.clock_s + self.compute(seconds)

    def now(self) -> Any:
        """The clock, in seconds."""
        return self.clock_s

    def seconds(self, begin: Any, end: Any) -> Any:
        """From one time to another."""
        return end - begin

    def exposed_s(self) -> Any:
        """Seconds of waiting since this was asked last."""
        self.waited, self.waits = self.waits, []
        return sum(wait.exposed_s for wait in self.waited)

    def complaints(self) -> list[str]:
        """Nothing: there are no numbers that could be wrong."""
        return []

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Nothing: there are no other ranks."""
        facts()


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
