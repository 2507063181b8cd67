"""Define the interface that schedules drive: buckets move through the stages (legs) of a route.

    start("reduce_scatter")   the way out      main thread: pack | engine: reduce ...
    start("all_gather")       the way back     engine: ... gather
    wait, update                               main thread: update, unpack

This base class decides for the live and the virtual fabric which legs are due, and on which thread.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.training.fabric.order import SUMS, VERDICT, Delayed, Handle, Key, Sequenced, Step, Turn, completed, sliced
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import Log
from dear_mpi.training.routes.legs import ENGINE, LOOK, Leg, Update
from dear_mpi.training.routes.route import EXTRAS, Route, reduces


class Fabric(ABC):
    """Start and await the ways of buckets, and update their parameters.

    Args:
        judged: whether a global gradient check precedes updates; see ``statistic.py``.

    Attributes:
        iteration: number of iterations with all gradients on their way.
        delayed: layers with outstanding weight gradients, in backward order.
    """

    idle: ClassVar[Any]  # the act that does nothing, see ``Step``
    look: Any  # the act that runs the global gradient check
    rules: Rules  # checks the schedule that runs now
    common = True  # whether all ranks update by the same gradients, see ``Proof``
    verdict: Any = None  # on the gradients, see ``statistic.py``; None on the virtual fabric

    def __init__(self, buckets: Cut, route: Route, log: Log, *, judged: bool = False) -> None:
        self.route, self.log, self.judged, self.iteration = route, log, judged, 0
        self.enter(buckets)

    def enter(self, buckets: Cut) -> None:
        """Continue with these buckets; nothing may be under way."""
        self.buckets = buckets
        self.sent_in = dict.fromkeys(buckets, self.iteration)  # iteration of each bucket's last sent gradients
        self.reduced = 0  # buckets of this iteration
        self.late: dict[Bucket, Handle] = {}  # waits deferred to a later iteration
        self.returning: list[Bucket] = []  # buckets whose way back starts by itself
        self.backs: dict[Bucket, Handle] = {}  # ways back that no schedule waits for
        self.verdict_handle: Handle | None = None
        self.delayed = deque[Delayed]()
        self.followed: Any = ...  # the order of this iteration; ... until one is set
        self.steps: dict[Turn, list[Step]] = {}  # of each turn, if equal in all iterations

    @abstractmethod
    def submit(self, key: Key, label: str, steps: Callable[[Turn], Sequence[Step]]) -> Handle:
        """Let the engine run these steps in each turn of a key."""

    @abstractmethod
    def finished(self, key: Key, label: str) -> Handle:
        """Return a handle that is over, without a turn of the engine."""

    @abstractmethod
    def act(self, leg: Leg, bucket: Bucket, portion: Portion, *, back: bool) -> Any:
        """Return the engine's act for a leg, see ``Step``; ``back``: on the way back."""

    @abstractmethod
    def carry_out(self, leg: Leg, bucket: Bucket, factor: float) -> None:
        """Run a leg on this thread."""

    @abstractmethod
    def put_in_order(self, order: Sequenced | None) -> None:
        """Set the engine's order; None for first in, first out."""

    @abstractmethod
    def block(self, handle: Any) -> None:
        """Block until a handle is over."""

    @abstractmethod
    def now(self) -> Any:
        """Return a time mark (event)."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> Any:
        """Return the seconds between two marks."""

    def complaints(self) -> list[str]:
        """Report non-finite gradients, equally on all ranks if they were sums."""
        return []

    def facts(self) -> dict[str, Any]:
        """Return the facts that ``debug`` compares between ranks."""
        return {}

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Raise on all ranks any error that ``facts`` raises on one. Collective."""
        facts()

    @property
    def verdict_factor(self) -> float | None:
        """Return the gradient factor after the global check; None to skip the iteration."""
        return 1.0 if self.verdict is None else self.verdict.factor

    @property
    def loss_scale(self) -> float:
        """Return the factor of gradients before they travel; the last check may change it."""
        self.factor()
        return 1.0 if self.verdict is None else self.verdict.scale

    def follow(self, order: Sequenced | None) -> None:
        """Set each iteration's order of collectives, completed with those that start by themselves."""
        if order is self.followed:
            return
        self.followed = order
        returns = len(self.route.jobs["all_reduce"]) > 1
        self.put_in_order(None if order is None else completed(order, judged=self.judged, returns=returns))

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a way of the route; ``all_reduce`` is both. The way out needs the bucket's gradients.

        If the engine updates between both ways, the way back starts by itself.
        """
        self.rules.start(collective, bucket)
        reducing, jobs = reduces(collective), self.route.jobs[collective]
        if reducing:
            self.sent_in[bucket] = self.iteration
        self.do(self.route.begins[collective], bucket)
        legs = [leg for leg in self.due(jobs[0], bucket) if leg is not LOOK or self.judged]
        handle = self.begin((collective, bucket.index), legs, bucket, back=not reducing)
        self.rules.started(handle)
        if len(jobs) > 1:
            self.returning.append(bucket)
        if reducing:
            self.count_out()
        return handle

    def begin(self, key: Key, legs: Sequence[Leg], bucket: Bucket, *, back: bool) -> Handle:
        """Launch legs; defer the wait if a later iteration uses their result."""
        if not self.route.delay:
            return self.launch(key, legs, bucket, back=back)
        if legs:
            self.late[bucket] = self.launch(key, legs, bucket, back=back)
        return self.finished(key, f"{key[0]} of {bucket}")

    def do(self, legs: Sequence[Leg], bucket: Bucket, factor: float = 1.0) -> None:
        """Run the due legs. After a round was ended early, no leg is late."""
        for leg in self.due(legs, bucket):
            if leg.after and bucket not in self.late:
                continue
            if leg.after:
                self.wait_for(self.late.pop(bucket))
            begin = self.now() if leg.timed else None
            self.carry_out(leg, bucket, factor)
            if leg.timed:
                self.log.did(leg.label, bucket.index, begin, self.now(), bucket)

    def count_out(self) -> None:
        """Count a bucket on its way out; after the last, start the check and deferred ways back."""
        self.reduced += 1
        if self.reduced == len(self.buckets):
            self.reduced, self.iteration = 0, self.iteration + 1
            if self.judged:
                self.verdict_handle = self.launch_sum(VERDICT, self.look)
        if not (self.judged and self.reduced):
            for each in self.returning:
                legs = self.due(self.route.ways["back", ENGINE], each)
                self.backs[each] = self.launch(("all_gather", each.index), legs, each, back=True)
            self.returning.clear()

    def launch(self, key: Key, legs: Sequence[Leg], bucket: Bucket, *, back: bool = False) -> Handle:
        """Submit legs, to run in order in their turn; ``back``: on the way back."""

        def step(leg: Leg, portion: Portion) -> Step:
            what = bucket if isinstance(leg, Update) else f"{leg.label} of {bucket}"
            return Step(leg.label, bucket.index, what, self.act(leg, bucket, portion, back=back))

        def steps(turn: Turn) -> list[Step]:
            due = [step(leg, turn.portion) for leg in sliced(turn, legs)]
            return due or [Step(*key, f"nothing of {bucket}", self.idle)]

        def known(turn: Turn) -> list[Step]:
            if turn not in self.steps:
                self.steps[turn] = steps(turn)
            return self.steps[turn]

        return self.submit(key, f"{key[0]} of {bucket}", known if self.route.steady else steps)

    def launch_sum(self, key: Key, act: Any) -> Handle:
        return self.submit(key, SUMS[key], lambda turn: [Step(*key, SUMS[key], act)])

    def due(self, legs: Sequence[Leg], bucket: Bucket) -> Sequence[Leg]:
        """Select the legs due in the iteration of the bucket's last sent gradients."""
        if self.route.steady:
            return legs
        iteration, shift = self.sent_in[bucket], self.route.shift(bucket.index, len(self.buckets))
        return [leg for leg in legs if leg.is_due(iteration - shift * (leg.every > 1))]

    def write_weights(self) -> None:
        if not self.delayed:
            self.rules.refuse("lets a layer write its weights' gradients, though none is delayed")
        self.delayed.popleft().write()

    def start_extra(self, extra: str, bucket: Bucket) -> Handle:
        """Begin an extra of ``EXTRAS``; later starts come after it."""
        self.rules.start_extra(extra, bucket)
        return self.launch((extra, bucket.index), [EXTRAS[extra]], bucket)

    def wait_for(self, handle: Handle) -> None:
        """Wait, and log the time as exposed communication."""
        begin = self.now()
        self.block(handle)
        self.log.waited(*handle.key, begin, self.now(), handle.label)

    def wait(self, handle: Handle) -> None:
        self.wait_for(handle)
        self.rules.awaited(handle)

    def update(self, bucket: Bucket) -> None:
        """End the way back: update a bucket's parameters, unless the check skips the iteration."""
        self.rules.update(bucket)
        back = self.backs.pop(bucket, None)
        if back is not None:
            self.wait_for(back)
        factor = self.factor()
        if factor is not None:
            self.do(self.route.last, bucket, factor)

    def factor(self) -> float | None:
        """Wait for the global check and return the gradient factor."""
        if not self.judged:
            return 1.0
        if self.verdict_handle is not None:
            handle, self.verdict_handle = self.verdict_handle, None
            self.wait_for(handle)
        return self.verdict_factor
