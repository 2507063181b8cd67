"""Record the state of every bucket, and refuse steps of a schedule that would change the parameters.

a bucket's gradients   written -> under way -> reduced, in shards or whole -> updated -> written ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.fabric.fabric import Handle, Sequenced, Turn
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import EXTRAS, Route, reduces


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
