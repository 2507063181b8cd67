"""What schedules drive: buckets go through the legs of a route, on a live network or on a virtual one.

    start("reduce_scatter")   the way out      main thread: pack | engine: reduce ...
    start("all_gather")       the way back     engine: ... gather
    wait, update                               main thread: update, unpack

Here is what both fabrics have in common: which legs are due, and on which thread. What carries legs out is in
``live.py``, plans and an engine, and in ``virtual.py``, a clock and prices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.training.fabric.order import Key, Sequenced, Turn, completed
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import Log
from dear_mpi.training.routes.legs import Collective, Leg
from dear_mpi.training.routes.route import EXTRAS, WAYS, Route, reduces


class Handle(Protocol):
    """Legs under way; schedules wait for them through their fabric, which takes the time."""

    @property
    def key(self) -> Key: ...


class Fabric(ABC):
    """Starts and awaits what buckets go through, and updates their parameters.

    Args:
        buckets: in the order of the line.
        route: what they go through.
        log: of what is done, and when.
        judged: whether all gradients are looked at before any of them is used; see ``verdict.py``.

    Attributes:
        iteration: how many have sent all their gradients.
    """

    rules: Rules  # the book of the schedule that runs now

    def __init__(self, buckets: Cut, route: Route, log: Log, *, judged: bool = False) -> None:
        self.route, self.log, self.judged = route, log, judged
        self.iteration = 0
        self.enter(buckets)

    def enter(self, buckets: Cut) -> None:
        """Go on with these buckets; nothing is under way."""
        self.buckets = buckets
        self.sent_in = dict.fromkeys(buckets, self.iteration)  # in which the gradients of each were sent last
        self.reduced = 0  # buckets of this iteration
        self.returning: list[Bucket] = []  # whose way back comes by itself
        self.backs: dict[Bucket, Handle] = {}  # ways back that no schedule waits for
        self.verdict_handle: Handle | None = None

    @abstractmethod
    def launch(self, key: Key, legs: Sequence[Leg], bucket: Bucket, *, back: bool = False) -> Handle:
        """Let the engine carry legs out, in their order, when it is their turn; ``back``: those of the way back."""

    @abstractmethod
    def launch_verdict(self) -> Handle:
        """Let the engine look at all gradients."""

    @abstractmethod
    def do(self, leg: Leg, bucket: Bucket, factor: float) -> None:
        """Carry a leg out on this thread."""

    @abstractmethod
    def put_in_order(self, order: Sequenced | None) -> None:
        """Let the engine's work go in this order; None for first in, first out."""

    @abstractmethod
    def wait_for(self, handle: Any) -> None:
        """Wait; the log has the time as exposed communication."""

    @abstractmethod
    def now(self) -> Any:
        """A mark of the time."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> Any:
        """From one mark to another."""

    def complaints(self) -> list[str]:
        """What was wrong with summed gradients, the same on all ranks."""
        return []

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Collective, if there are other ranks: raise on all what any of them raises in ``facts``."""
        facts()

    @property
    def verdict_factor(self) -> float | None:
        """What the verdict has said: by what gradients are multiplied; None to skip the iteration."""
        return 1.0

    @property
    def scale(self) -> float:
        """What gradients are multiplied by before they travel."""
        return 1.0

    @property
    def loss_scale(self) -> float:
        """The same for the next backward pass: the verdict on the last one may change it."""
        self.factor()
        return self.scale

    def follow(self, order: Sequenced | None) -> None:
        """Let the collectives of each iteration go onto the wire in this order, with all that comes without it."""
        if order is not None and len(self.route.jobs("all_reduce")) > 1:
            order = self.with_ways_back(order)
        self.put_in_order(completed(order, judged=self.judged))

    def with_ways_back(self, order: Sequenced) -> list[Key | Turn]:
        """An order with the way back of each all_reduce: right after it, or at the end if there is a verdict."""
        backs = {each: ("all_gather", each[1]) for each in order if each[0] == "all_reduce" and Turn(*each).ends}
        if self.judged:
            return [*order, *backs.values()]
        return [one for each in order for one in ((each, backs[each]) if each in backs else (each,))]

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a way of the route; ``all_reduce`` is both. On the way out, the gradients of the bucket must be there.

        Where the engine updates between the two ways of an ``all_reduce``, the way back comes by itself.
        """
        self.rules.start(collective, bucket)
        if reduces(collective):
            self.sent_in[bucket] = self.iteration
        for way in WAYS[collective]:
            for leg in self.due(self.route.first[way], bucket):
                self.do(leg, bucket, 1.0)
        jobs = self.route.jobs(collective)
        legs, back = self.due(jobs[0], bucket), not reduces(collective)
        handle = self.launch((collective, bucket.index), legs, bucket, back=back)
        self.rules.started(collective, bucket, handle)
        if len(jobs) > 1:
            self.returning.append(bucket)
        if reduces(collective):
            self.count_out()
        return handle

    def count_out(self) -> None:
        """One more bucket is on its way out. After the last comes the verdict, and what had to wait for it."""
        self.reduced += 1
        if self.reduced == len(self.buckets):
            self.reduced, self.iteration = 0, self.iteration + 1
            if self.judged:
                self.verdict_handle = self.launch_verdict()
        if not (self.judged and self.reduced):
            for each in self.returning:
                legs = self.due(self.route.ways["back"], each)
                self.backs[each] = self.launch(("all_gather", each.index), legs, each, back=True)
            self.returning.clear()

    def legs_of(self, turn: Turn, legs: Sequence[Leg]) -> list[Leg]:
        """The legs of one turn. The first turn has those before the collective, the last one those after it."""
        at = next((number for number, leg in enumerate(legs) if isinstance(leg, Collective)), len(legs))
        return [
            leg
            for number, leg in enumerate(legs)
            if number == at or (number < at and turn.begins) or (number > at and turn.ends)
        ]

    def due(self, legs: Sequence[Leg], bucket: Bucket) -> list[Leg]:
        """Those of the iteration in which the bucket's gradients were sent."""
        return [leg for leg in legs if leg.is_due(self.sent_in[bucket])]

    def start_extra(self, extra: str, bucket: Bucket) -> Handle:
        """Begin what is no way of the route, by its name in ``EXTRAS``; what is started next comes after it."""
        self.rules.start_extra(extra, bucket)
        return self.launch((extra, bucket.index), [EXTRAS[extra]], bucket)

    def wait(self, handle: Any) -> None:
        """Wait for what was started."""
        self.wait_for(handle)
        collective, index = handle.key
        self.rules.awaited(collective, self.buckets[index], handle)

    def update(self, bucket: Bucket) -> None:
        """End the way back: make the parameters of a bucket new, unless the verdict is to skip the iteration."""
        self.rules.update(bucket)
        back = self.backs.pop(bucket, None)
        if back is not None:
            self.wait_for(back)
        factor = self.factor()
        if factor is not None:
            for leg in self.due(self.route.last, bucket):
                self.do(leg, bucket, factor)

    def factor(self) -> float | None:
        """What gradients are multiplied by; waits for the verdict on them."""
        if not self.judged:
            return 1.0
        if self.reduced:
            what = f"only {self.reduced} of {len(self.buckets)} buckets are being reduced"
            raise CollectiveError(f"an update needs the verdict on all gradients, and {what}")
        if self.verdict_handle is not None:
            handle, self.verdict_handle = self.verdict_handle, None
            self.wait_for(handle)
        return self.verdict_factor
