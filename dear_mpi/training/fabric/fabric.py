"""Define the interface that schedules drive: buckets move through the stages of a route.

    start("reduce_scatter")   the way out      main thread: pack | engine: reduce ...
    start("all_gather")       the way back     engine: ... gather
    wait, update                               main thread: update, unpack

``Fabric`` decides which stages are due, on which thread; ``Order`` when the engine runs them. All ranks must run the
same collectives in the same order, or they hang. First in, first out suffices if all ranks start alike. An order
decided in advance puts urgent collectives first even if they are ready last. It may interrupt a collective, which then
has a turn for each portion (``collectives/lowering/messages.py``).

No rank can deadlock: take a stuck rank that has come least far, to the k-th collective. No other rank keeps it waiting,
so its schedule has not started the k-th, and waits for a later one. That depends only on the schedule, not on time: the
virtual fabric detects it and refuses the schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events import EXCHANGE, Log
from dear_mpi.training.routes.route import EXTRAS, Route, reduces
from dear_mpi.training.routes.stages import ENGINE, LOOK, Collective, Stage, Update

if TYPE_CHECKING:
    from dear_mpi.training.fabric.rules import Rules

Key: TypeAlias = tuple[str, int]  # a collective and a bucket's index; or an exchange and a layer call
LOSS: Key = ("loss", 0)  # the sum over ranks, started after the forward pass
VERDICT: Key = ("verdict", 0)  # the global gradient check, after the last reduction
SUMS = {LOSS: "all_reduce of the loss", VERDICT: "all_reduce of the statistics"}  # without a bucket


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


class Task(NamedTuple):
    kind: str  # name and bucket as in the log, like the next two
    number: int
    what: object
    act: Any  # the action; on the virtual fabric its seconds


Tasks: TypeAlias = Callable[[Turn], Sequence[Task]]


class Delayed(NamedTuple):
    """Hold a layer call that has yet to write its weight gradients."""

    call: int
    write: Callable[[], None]


@dataclass(eq=False)
class Handle:
    key: Key
    label: str  # in logs and errors
    # By turn; None when over: ``Rules`` keeps handles, and tasks refer to their fabric.
    tasks: Tasks | None


class Fabric(ABC):
    """Start and await the ways of buckets; ``judged``: a global gradient check precedes updates."""

    idle: ClassVar[Any]  # the act that does nothing, see ``Task``
    look: Any  # runs the global gradient check
    rules: Rules  # checks the schedule that runs now
    common = True  # whether all ranks update by the same gradients, see ``Proof``
    verdict: Any = None  # see ``statistic.py``; None on the virtual fabric

    def __init__(self, buckets: Cut, route: Route, log: Log, *, judged: bool = False) -> None:
        self.route, self.log, self.judged = route, log, judged
        self.iteration, self.order = 0, Order()
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
        self.delayed = deque[Delayed]()  # layers with outstanding weight gradients, in backward order
        self.followed: Any = ...  # this iteration's order; ... until set
        self.tasks: dict[Turn, list[Task]] = {}  # if equal in all iterations

    @abstractmethod
    def handle(self, key: Key, label: str, tasks: Tasks | None) -> Any:
        """Return a new handle; without tasks it is over."""

    @abstractmethod
    def carry(self, turn: Turn, handle: Any) -> None:
        """Let the engine run a turn's tasks, after those of earlier calls."""

    @abstractmethod
    def act(self, stage: Stage, bucket: Bucket, portion: Portion, *, back: bool) -> Any:
        """Return the engine's act for a stage, see ``Task``; ``back``: on the way back."""

    @abstractmethod
    def run(self, stage: Stage, bucket: Bucket, factor: float) -> None:
        """Run a stage on this thread."""

    @abstractmethod
    def block(self, handle: Any) -> None: ...

    @abstractmethod
    def now(self) -> Any: ...

    @abstractmethod
    def seconds(self, begin: Any, end: Any) -> Any: ...

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
    def loss_scale(self) -> float:
        """Return the factor of gradients before they travel, set by the last check."""
        self.factor()
        return 1.0 if self.verdict is None else self.verdict.scale

    def follow(self, order: Sequenced | None) -> None:
        """Set the iteration's order, completed with collectives that start by themselves."""
        if order is self.followed:
            return
        self.followed = order
        returns = len(self.route.jobs["all_reduce"]) > 1
        turns = None if order is None else completed(order, judged=self.judged, returns=returns)
        self.order = self.order.replaced(turns)

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a way of the route; ``all_reduce`` is both. The way out needs the bucket's gradients.

        If the engine updates between both ways, the way back starts by itself. ``run_due`` waits for a result of a
        later iteration; the returned handle is then over.
        """
        self.rules.start(collective, bucket)
        reducing, jobs = reduces(collective), self.route.jobs[collective]
        if reducing:
            self.sent_in[bucket] = self.iteration
        self.run_due(self.route.begins[collective], bucket)
        key = collective, bucket.index
        stages = [stage for stage in self.due(jobs[0], bucket) if stage is not LOOK or self.judged]
        if not self.route.delay:
            handle = self.launch(key, stages, bucket, back=not reducing)
        else:
            if stages:
                self.late[bucket] = self.launch(key, stages, bucket, back=not reducing)
            handle = self.handle(key, f"{collective} of {bucket}", None)
        self.rules.started(handle)
        if len(jobs) > 1:
            self.returning.append(bucket)
        if reducing:
            self.count_out()
        return handle

    def run_due(self, stages: Sequence[Stage], bucket: Bucket, factor: float = 1.0) -> None:
        """Run due stages. After a round was ended early, no stage is late."""
        for stage in self.due(stages, bucket):
            if stage.after and bucket not in self.late:
                continue
            if stage.after:
                self.wait_for(self.late.pop(bucket))
            begin = self.now() if stage.timed else None
            self.run(stage, bucket, factor)
            if stage.timed:
                self.log.did(stage.label, bucket.index, begin, self.now(), bucket)

    def count_out(self) -> None:
        """After the last bucket's way out, start the check and deferred ways back."""
        self.reduced += 1
        if self.reduced == len(self.buckets):
            self.reduced, self.iteration = 0, self.iteration + 1
            if self.judged:
                self.verdict_handle = self.launch_act(VERDICT, self.look)
        if not (self.judged and self.reduced):
            for each in self.returning:
                stages = self.due(self.route.ways["back", ENGINE], each)
                self.backs[each] = self.launch(("all_gather", each.index), stages, each, back=True)
            self.returning.clear()

    def launch(self, key: Key, stages: Sequence[Stage], bucket: Bucket, *, back: bool = False) -> Handle:
        """Submit stages, to run in order."""

        def task(stage: Stage, portion: Portion) -> Task:
            what = bucket if isinstance(stage, Update) else f"{stage.label} of {bucket}"
            return Task(stage.label, bucket.index, what, self.act(stage, bucket, portion, back=back))

        def tasks(turn: Turn) -> list[Task]:
            found = self.tasks.get(turn)
            if found is None:
                found = [task(stage, turn.portion) for stage in sliced(turn, stages)]
                found = found or [Task(*key, f"nothing of {bucket}", self.idle)]
                if self.route.steady:
                    self.tasks[turn] = found
            return found

        return self.submit(key, f"{key[0]} of {bucket}", tasks)

    def launch_act(self, key: Key, act: Any, label: str = "") -> Handle:
        """Let the engine run one act, such as a sum without a bucket."""
        label = label or SUMS[key]
        return self.submit(key, label, lambda turn: [Task(*key, label, act)])

    def submit(self, key: Key, label: str, tasks: Tasks) -> Handle:
        """Let the engine run these tasks in each turn of a key, and others whose turn then comes."""
        handle: Handle = self.handle(key, label, tasks)
        for turn, each in self.order.submit(key, handle):
            self.carry(turn, each)
        return handle

    def due(self, stages: Sequence[Stage], bucket: Bucket) -> Sequence[Stage]:
        if self.route.steady:
            return stages
        iteration, shift = self.sent_in[bucket], self.route.shift(bucket.index, len(self.buckets))
        return [stage for stage in stages if stage.is_due(iteration - shift * (stage.every > 1))]

    def write_weights(self) -> None:
        if not self.delayed:
            self.rules.refuse("lets a layer write its weights' gradients, though none is delayed")
        self.delayed.popleft().write()

    def start_extra(self, extra: str, bucket: Bucket) -> Handle:
        """Begin an extra of ``EXTRAS``; later starts come after it."""
        self.rules.start_extra(extra, bucket)
        return self.launch((extra, bucket.index), [EXTRAS[extra]], bucket)

    def wait_for(self, handle: Handle) -> None:
        """Wait; log the time as exposed communication."""
        begin = self.now()
        self.block(handle)
        self.log.waited(*handle.key, begin, self.now(), handle.label)

    def wait(self, handle: Handle) -> None:
        self.wait_for(handle)
        self.rules.awaited(handle)

    def update(self, bucket: Bucket) -> None:
        """End the way back, unless the check skips the iteration."""
        self.rules.update(bucket)
        back = self.backs.pop(bucket, None)
        if back is not None:
            self.wait_for(back)
        factor = self.factor()
        if factor is not None:
            self.run_due(self.route.last, bucket, factor)

    def factor(self) -> float | None:
        """Wait for the global check and return the gradient factor; None to skip the iteration."""
        if self.verdict_handle is not None:
            handle, self.verdict_handle = self.verdict_handle, None
            self.wait_for(handle)
        return 1.0 if self.verdict is None else self.verdict.factor


class Order:
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
        self.waiting: dict[Key, Any] = {}

    @property
    def next(self) -> str:
        return "any" if not self.turns else "the {} of bucket {}".format(*self.turns[self.position])

    def submit(self, key: Key, item: Any) -> list[tuple[Turn, Any]]:
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

    def replaced(self, turns: Sequenced | None) -> Order:
        """Return this order if equal, else a new one; ValueError within an iteration."""
        if self.turns == whole(turns):
            return self
        if self.waiting or self.position:
            raise ValueError(f"the order cannot be changed within an iteration: it is the turn of {self.next}")
        return Order(turns)


def whole(turns: Sequenced | None) -> tuple[Turn, ...] | None:
    return None if turns is None else tuple(Turn(*turn) for turn in turns)


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


PORTION_BYTES = 2 << 20  # 1.7 ms at 10 Gbit/s: the longest wait of an urgent collective
MOST_PORTIONS = 1024  # of 2 GiB: an order, a list, is tried several times


def portions_of(nbytes: int, ranks: int, segment_bytes: int) -> int:
    """Return the most portions of a collective: each has a segment of every chunk.

    >>> portions_of(PORTION_BYTES, 2, 1024), portions_of(PORTION_BYTES + 1, 2, 1024), portions_of(1 << 24, 64, 1 << 18)
    (1, 2, 1)
    """
    return max(1, min(-(-nbytes // PORTION_BYTES), -(-nbytes // (ranks * segment_bytes)), MOST_PORTIONS))
