"""Define the interface that schedules drive: buckets move through the stages of a route.

    start("reduce_scatter")   the way out      main thread: pack | engine: reduce ...
    start("all_gather")       the way back     engine: ... gather
    wait, update                               main thread: update, unpack

``Fabric`` decides which stages are due, on which thread. ``Rules`` record the state of every bucket and refuse steps
that would change the parameters:

    a bucket's gradients   written -> under way -> reduced, in shards or whole -> updated -> written ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events import Log
from dear_mpi.training.fabric.order import (
    SUMS,
    VERDICT,
    Delayed,
    Handle,
    Key,
    Sequenced,
    Step,
    Steps,
    Turn,
    completed,
    sliced,
)
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import EXTRAS, Route, reduces
from dear_mpi.training.routes.stages import ENGINE, LOOK, Stage, Update


class Fabric(ABC):
    """Start and await the ways of buckets; ``judged``: a global gradient check precedes updates."""

    idle: ClassVar[Any]  # the act that does nothing, see ``Step``
    look: Any  # runs the global gradient check
    rules: Rules  # checks the schedule that runs now
    common = True  # whether all ranks update by the same gradients, see ``Proof``
    verdict: Any = None  # see ``statistic.py``; None on the virtual fabric

    def __init__(self, buckets: Cut, route: Route, log: Log, *, judged: bool = False) -> None:
        self.route, self.log, self.judged = route, log, judged
        self.iteration = 0
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
        self.steps: dict[Turn, list[Step]] = {}  # if equal in all iterations

    @abstractmethod
    def submit(self, key: Key, label: str, steps: Steps) -> Handle:
        """Let the engine run these steps in each turn of a key."""

    @abstractmethod
    def finished(self, key: Key, label: str) -> Handle:
        """Return a handle that is over."""

    @abstractmethod
    def act(self, stage: Stage, bucket: Bucket, portion: Portion, *, back: bool) -> Any:
        """Return the engine's act for a stage, see ``Step``; ``back``: on the way back."""

    @abstractmethod
    def run(self, stage: Stage, bucket: Bucket, factor: float) -> None:
        """Run a stage on this thread."""

    @abstractmethod
    def put_in_order(self, order: Sequenced | None) -> None:
        """Set the engine's order; None: first in, first out."""

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
        self.put_in_order(None if order is None else completed(order, judged=self.judged, returns=returns))

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
            handle = self.finished(key, f"{collective} of {bucket}")
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

        def step(stage: Stage, portion: Portion) -> Step:
            what = bucket if isinstance(stage, Update) else f"{stage.label} of {bucket}"
            return Step(stage.label, bucket.index, what, self.act(stage, bucket, portion, back=back))

        def steps(turn: Turn) -> list[Step]:
            found = self.steps.get(turn)
            if found is None:
                found = [step(stage, turn.portion) for stage in sliced(turn, stages)]
                found = found or [Step(*key, f"nothing of {bucket}", self.idle)]
                if self.route.steady:
                    self.steps[turn] = found
            return found

        return self.submit(key, f"{key[0]} of {bucket}", steps)

    def launch_act(self, key: Key, act: Any, label: str = "") -> Handle:
        """Let the engine run one act, such as a sum without a bucket."""
        label = label or SUMS[key]
        return self.submit(key, label, lambda turn: [Step(*key, label, act)])

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


class ScheduleError(ValueError):
    """Report a schedule that would train wrongly, or hang."""


@dataclass
class Entry:
    missing: set[int] = field(default_factory=set)  # layer calls that have not run backward
    started: dict[str, Handle] = field(default_factory=dict)  # collectives, in order, with their handles
    awaited: set[str] = field(default_factory=set)
    updated: bool = True


class Rules:
    """Check one schedule: a class, or any object with ``collectives`` and ``extras``."""

    def __init__(self, name: str, buckets: Cut, schedule: Any, *, judged: bool = False, route: Route = FULL) -> None:
        self.name, self.buckets, self.schedule = name, buckets, schedule
        self.collectives, self.extras = schedule.collectives, schedule.extras
        self.judged, self.route = judged, route
        self.reduced = 0
        self.followed: Sequenced | None = None  # the order that holds collectives back until their turn
        self.entries = {bucket: Entry() for bucket in buckets}
        self.iteration = 0
        self.point: tuple[str, tuple[int, ...]] = ("", ())

    def another(self) -> Rules:
        return Rules(self.name, self.buckets, self.schedule, judged=self.judged, route=self.route)

    def refuse(self, what: str) -> NoReturn:
        raise ScheduleError(f"schedule {self.name!r} {what} (in {self.where} of iteration {self.iteration})")

    @property
    def where(self) -> str:
        return f"{self.point[0]}({', '.join(map(str, self.point[1]))})" if self.point[0] else "its order"

    def follow(self, order: Sequenced | None) -> None:
        """Check an order: the global gradient check must come after the last reduction."""
        given = None if order is None else tuple(order)
        if given == self.followed:  # checked in an earlier iteration
            return
        if order is not None and not self.are_all(order):
            allowed = "a list of all pairs of a collective and the index of a bucket, each once, or in all its portions"
            self.refuse(f"must have an order that is {allowed}, not {order!r:.200}")
        backs = [not reduces(collective) for collective, *_ in order or ()]
        if self.judged and backs != sorted(backs):
            what = "after which clipping, loss scaling or a statistic looks at all gradients"
            self.refuse(f"has an order in which an all_gather goes before the last reduction, {what}")
        self.followed = given

    def before_layer(self, call: int) -> None:
        for bucket in self.buckets.needed_by(call):
            entry = self.entries[bucket]
            if not entry.updated:
                lacks = "has not been updated" if entry.awaited else "was not waited for"
                self.refuse(f"lets layer {call} run though {bucket} {lacks}")

    def wrote(self, call: int) -> None:
        for bucket in self.buckets.needed_by(call):
            if self.entries[bucket].updated:
                self.entries[bucket] = Entry(missing=set(bucket.calls), updated=False)
            entry = self.entries[bucket]
            if entry.started:
                started = next(iter(entry.started))
                self.refuse(f"has started the {started} of {bucket} before layer {call} wrote its gradients")
            entry.missing.discard(call)

    def start(self, collective: str, bucket: Bucket) -> None:
        entry, reducing = self.entries.get(bucket), reduces(collective)
        if collective not in self.collectives:
            allowed = ", ".join(self.collectives) or "none"
            self.refuse(f"starts the {collective} of {bucket}, which is not among its collectives, {allowed}")
        if entry is None:
            self.refuse(f"starts the {collective} of {bucket}, which is none of the model's buckets")
        if collective in entry.started or (reducing and entry.started):
            self.refuse(f"starts the {collective} of {bucket} after its {[*entry.started][-1]}, once too often")
        if not reducing and [*entry.started] != ["reduce_scatter"]:
            self.refuse(f"starts the all_gather of {bucket} without a reduce_scatter before it")
        if not reducing and self.route.updates_under_way and self.followed is None:
            self.check_judged(f"starts the all_gather of {bucket}")
        if entry.updated or entry.missing:
            missing = ", ".join(map(str, sorted(entry.missing or set(bucket.calls))))
            self.refuse(f"starts the {collective} of {bucket} before layer {missing} wrote gradients")
        self.reduced += reducing

    def started(self, handle: Handle) -> None:
        collective, index = handle.key
        self.entries[self.buckets[index]].started[collective] = handle

    def start_extra(self, extra: str, bucket: Bucket) -> None:
        if extra not in self.extras:
            allowed = ", ".join(self.extras) or "none"
            self.refuse(f"starts the {extra} of {bucket}, which is not among its extras, {allowed}")
        entry = self.entries.get(bucket)
        if EXTRAS[extra].buffer == "values" and (entry is None or not (entry.updated or entry.missing)):
            self.refuse(f"starts the {extra} of {bucket}, whose values are not the new ones")

    def awaited(self, handle: Handle) -> None:
        """Record a wait; collectives of earlier iterations do not count."""
        collective, index = handle.key
        if (entry := self.entries[self.buckets[index]]).started.get(collective) is handle:
            entry.awaited.add(collective)

    def update(self, bucket: Bucket) -> None:
        entry = self.entries.get(bucket)
        if entry is None or entry.updated:
            self.refuse(f"updates {bucket}, which has no new gradients")
        if not {"all_reduce", "all_gather"}.intersection(entry.awaited):
            found = f"its {[*entry.started][-1]} was waited for" if entry.started else "its gradients were reduced"
            self.refuse(f"updates {bucket} before {found}")
        self.check_judged(f"updates {bucket}")
        entry.updated = True

    def check_judged(self, what: str) -> None:
        """Check that all reductions are on their way before a global check lets gradients be used."""
        if self.judged and self.reduced % len(self.entries):
            self.refuse(
                f"{what} before all buckets are on their way, which clipping, loss scaling or a statistic needs"
            )

    def end_backward(self, delayed: Sequence[int] = ()) -> None:
        """Check that all buckets are on their way, and nothing is ``delayed``."""
        if delayed:
            layers = ", ".join(map(str, delayed))
            self.refuse(f"has delayed the weights' gradients of layer {layers}, and never let it write them")
        for bucket, entry in self.entries.items():
            if not entry.updated and not entry.started:
                self.refuse(f"forgets {bucket}: it has started no collective for it")
        self.iteration += 1

    @property
    def idle(self) -> bool:
        return all(each.updated for each in self.entries.values())

    @property
    def all_started(self) -> bool:
        last = {"all_reduce", "all_gather"}
        return all(entry.updated or last & entry.started.keys() for entry in self.entries.values())

    def flushed(self) -> None:
        for bucket, entry in self.entries.items():
            if not entry.updated:
                self.refuse(f"forgets {bucket}: it has not updated it")

    def are_all(self, order: Sequenced) -> bool:
        """Tell whether an order has each collective once, or its portions in sequence."""
        due = {(collective, bucket.index): 0 for collective in self.collectives for bucket in self.buckets}
        try:
            for turn in (Turn(*each) for each in order):
                first, last, of = turn.portion
                if due.get(turn.key) != first or not first < last <= of:
                    return False
                due[turn.key] = -1 if last == of else last
        except TypeError:
            return False
        return all(done == -1 for done in due.values())
