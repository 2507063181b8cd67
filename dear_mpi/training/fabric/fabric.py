"""What schedules drive: buckets go through the legs of a route, on a live network or on a virtual one.

    start("reduce_scatter")   the way out      main thread: pack | engine: reduce ...
    start("all_gather")       the way back     engine: ... gather
    wait, update                               main thread: update, unpack

Here is what both fabrics have in common: which legs are due, and on which thread.
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
    """Starts and awaits what buckets go through, and updates their parameters.

    Args:
        judged: whether all gradients are looked at before any of them is used; see ``statistic.py``.

    Attributes:
        iteration: the number of iterations all of whose gradients are on their way.
        delayed: of each layer whose weights' gradients are not there yet, in the order in which they ran backward.
    """

    idle: ClassVar[Any]  # the act that does nothing, see ``Step``
    look: Any  # the act that gives the verdict
    rules: Rules  # the book of the schedule that runs now
    common = True  # whether all ranks update by the same gradients, see ``Proof``
    verdict: Any = None  # on the gradients, see ``statistic.py``; the virtual fabric has none

    def __init__(self, buckets: Cut, route: Route, log: Log, *, judged: bool = False) -> None:
        self.route, self.log, self.judged, self.iteration = route, log, judged, 0
        self.enter(buckets)

    def enter(self, buckets: Cut) -> None:
        """Go on with these buckets; nothing is under way."""
        self.buckets = buckets
        self.sent_in = dict.fromkeys(buckets, self.iteration)  # in which the gradients of each were sent last
        self.reduced = 0  # buckets of this iteration
        self.late: dict[Bucket, Handle] = {}  # what is used in a later iteration
        self.returning: list[Bucket] = []  # whose way back comes by itself
        self.backs: dict[Bucket, Handle] = {}  # ways back that no schedule waits for
        self.verdict_handle: Handle | None = None
        self.delayed = deque[Delayed]()
        self.followed: Any = ...  # the order of this iteration, which nobody has said yet
        self.steps: dict[Turn, list[Step]] = {}  # of each turn, where they are the same in all iterations

    @abstractmethod
    def submit(self, key: Key, label: str, steps: Callable[[Turn], Sequence[Step]]) -> Handle:
        """Let the engine carry these steps out in each turn of a key."""

    @abstractmethod
    def finished(self, key: Key, label: str) -> Handle:
        """What is over, without a turn of the engine."""

    @abstractmethod
    def act(self, leg: Leg, bucket: Bucket, portion: Portion, *, back: bool) -> Any:
        """What makes the engine carry a leg out, see ``Step``; ``back``: on the way back."""

    @abstractmethod
    def carry_out(self, leg: Leg, bucket: Bucket, factor: float) -> None:
        """Carry a leg out on this thread."""

    @abstractmethod
    def put_in_order(self, order: Sequenced | None) -> None:
        """Let the engine's work go in this order; None for first in, first out."""

    @abstractmethod
    def block(self, handle: Any) -> None:
        """Do nothing until a handle is over."""

    @abstractmethod
    def now(self) -> Any:
        """A mark of the time."""

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> Any:
        """From one mark to another."""

    def complaints(self) -> list[str]:
        """Say which gradients of updates were not finite. If they were sums, all ranks say the same."""
        return []

    def facts(self) -> dict[str, Any]:
        """What is compared between ranks in each iteration, where all is to be looked at."""
        return {}

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Collective, if there are other ranks: raise on all what any of them raises in ``facts``."""
        facts()

    @property
    def verdict_factor(self) -> float | None:
        """What the verdict has said: by what gradients are multiplied; None to skip the iteration."""
        return 1.0 if self.verdict is None else self.verdict.factor

    @property
    def loss_scale(self) -> float:
        """What gradients are multiplied by before they travel: the verdict on the last ones may change it."""
        self.factor()
        return 1.0 if self.verdict is None else self.verdict.scale

    def follow(self, order: Sequenced | None) -> None:
        """Let the collectives of each iteration be carried out in this order, with what comes by itself."""
        if order is self.followed:
            return
        self.followed = order
        returns = len(self.route.jobs["all_reduce"]) > 1
        self.put_in_order(None if order is None else completed(order, judged=self.judged, returns=returns))

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a way of the route; ``all_reduce`` is both. On the way out, the gradients of the bucket must be there.

        Where the engine updates between the two ways of an ``all_reduce``, the way back comes by itself.
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
        """Launch legs; what is used in a later iteration is awaited there, and nobody waits for it before."""
        if not self.route.delay:
            return self.launch(key, legs, bucket, back=back)
        if legs:
            self.late[bucket] = self.launch(key, legs, bucket, back=back)
        return self.finished(key, f"{key[0]} of {bucket}")

    def do(self, legs: Sequence[Leg], bucket: Bucket, factor: float = 1.0) -> None:
        """Carry those of these legs out that are due. Where a round was ended meanwhile, nothing is late any more."""
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
        """One more bucket is on its way out. After the last comes the verdict, and what had to wait for it."""
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
        """Let the engine carry legs out, in their order, when it is their turn; ``back``: those of the way back."""

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
        """Let the engine do what is of no bucket."""
        return self.submit(key, SUMS[key], lambda turn: [Step(*key, SUMS[key], act)])

    def due(self, legs: Sequence[Leg], bucket: Bucket) -> Sequence[Leg]:
        """Those of the iteration in which the bucket's gradients were sent."""
        if self.route.steady:
            return legs
        iteration, shift = self.sent_in[bucket], self.route.shift(bucket.index, len(self.buckets))
        return [leg for leg in legs if leg.is_due(iteration - shift * (leg.every > 1))]

    def write_weights(self) -> None:
        """Let the first of the delayed layers write its weights' gradients."""
        if not self.delayed:
            self.rules.refuse("lets a layer write its weights' gradients, though none is delayed")
        self.delayed.popleft().write()

    def start_extra(self, extra: str, bucket: Bucket) -> Handle:
        """Begin what is no way of the route, by its name in ``EXTRAS``; what is started next comes after it."""
        self.rules.start_extra(extra, bucket)
        return self.launch((extra, bucket.index), [EXTRAS[extra]], bucket)

    def wait_for(self, handle: Handle) -> None:
        """Wait; the log has the time as exposed communication."""
        begin = self.now()
        self.block(handle)
        self.log.waited(*handle.key, begin, self.now(), handle.label)

    def wait(self, handle: Handle) -> None:
        """Wait for what was started."""
        self.wait_for(handle)
        self.rules.awaited(handle)

    def update(self, bucket: Bucket) -> None:
        """End the way back: make the parameters of a bucket new, unless the verdict is to skip the iteration."""
        self.rules.update(bucket)
        back = self.backs.pop(bucket, None)
        if back is not None:
            self.wait_for(back)
        factor = self.factor()
        if factor is not None:
            self.do(self.route.last, bucket, factor)

    def factor(self) -> float | None:
        """What gradients are multiplied by; waits for the verdict on them."""
        if not self.judged:
            return 1.0
        if self.verdict_handle is not None:
            handle, self.verdict_handle = self.verdict_handle, None
            self.wait_for(handle)
        return self.verdict_factor
