"""The virtual fabric: a clock, one wire, and a price for each collective. It needs neither MPI nor memory.

    compute   | forward, as long as it is said to take | backward ...      wait: the clock moves on to the end
    wire             | collective | collective |                           one at a time, in the order of the engine

The trainer and the schedules run on it as they do on the live one. It also keeps the book of ``rules.py``, so that a
schedule which would train wrongly, or wait for ever, is refused before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.kernels.array import Array
from dear_mpi.training.fabric.order import Key, Order
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.line.bucket import Bucket

__all__ = ["VirtualFabric", "VirtualUse"]

Price = Callable[[str, Bucket], float]


@dataclass(eq=False)
class VirtualHandle:
    """A collective under way, and when it has ended, if that is known."""

    collective: str
    bucket: Bucket
    submitted_s: float
    end_s: float | None = None

    def wait(self) -> None:
        """Nothing: the fabric moves the clock."""


class VirtualFabric:
    """Runs a schedule on a clock.

    Args:
        rules: the book of the schedule that runs, with the buckets.
        price: seconds of a collective of a bucket.
    """

    def __init__(self, rules: Rules, *, price: Price = lambda collective, bucket: 0.0) -> None:
        self.rules, self.buckets, self.price = rules, rules.buckets, price
        self.clock_s = self.wire_free_s = self.exposed = 0.0
        self.order: Order[VirtualHandle] = Order(None)

    loss_scale = 1.0

    def follow(self, order: Sequence[Key] | None) -> None:
        """Let collectives go onto the wire in this order."""
        self.order = self.order.replaced(order)

    def start(self, collective: str, bucket: Bucket) -> VirtualHandle:
        """Put a collective onto the wire, when its turn has come."""
        handle = VirtualHandle(collective, bucket, self.clock_s)
        self.rules.start(collective, bucket, handle)
        for next_one in self.order.submit((collective, bucket.index), handle):
            begin_s = max(self.wire_free_s, next_one.submitted_s)
            self.wire_free_s = next_one.end_s = begin_s + self.price(next_one.collective, next_one.bucket)
        return handle

    def wait(self, handle: VirtualHandle) -> None:
        """Move the clock on to the end of a collective."""
        if handle.end_s is None:
            what = f"waits for the {handle.collective} of {handle.bucket} though it has not started what comes before"
            self.rules.refuse(f"{what}, {self.order.next}: it would wait for ever")
        self.exposed += max(0.0, handle.end_s - self.clock_s)
        self.clock_s = max(self.clock_s, handle.end_s)
        self.rules.awaited(handle.collective, handle.bucket, handle)

    def update(self, bucket: Bucket) -> None:
        """Note that a bucket is updated, which takes no time."""
        self.rules.update(bucket)

    def spend(self, seconds: float) -> None:
        """Let time pass: something is computed."""
        self.clock_s += seconds

    def now(self) -> float:
        """The clock, in seconds."""
        return self.clock_s

    def seconds(self, begin: float, end: float) -> float:
        """From one time to another."""
        return end - begin

    def exposed_s(self) -> float:
        """Seconds of waiting since this was asked last."""
        exposed, self.exposed = self.exposed, 0.0
        return exposed

    def complaints(self) -> list[str]:
        """Nothing: there are no numbers that could be wrong."""
        return []

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Nothing: there are no other ranks."""
        facts()


@dataclass(eq=False)
class VirtualUse:
    """A use of a layer that only takes time."""

    fabric: VirtualFabric
    number: int
    forward_s: float = 0.0
    backward_s: float = 0.0

    complaints: Sequence[str] = ()

    def forward(self, x: Array, *, inspect: bool) -> Array:
        self.fabric.spend(self.forward_s)
        return x

    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...

    def backward(self, dy: Array) -> Array:
        self.fabric.spend(self.backward_s)
        return dy

    def after_backward(self, *, last: bool) -> None: ...
