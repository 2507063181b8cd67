"""Check a schedule: record the state of every bucket, and refuse steps that break a rule.

    a bucket's gradients   written -> under way -> reduced, in shards or whole -> updated -> written ...

A schedule that keeps these rules computes the same parameters as ``sequential``. An error names the bucket and the
point of the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dear_mpi.training.fabric.order import Handle, Key, Sequenced, Turn
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import EXTRAS, Route, reduces


class ScheduleError(ValueError):
    """Report a schedule that would train wrongly, or hang."""


@dataclass
class Entry:
    """Record a bucket's history since its gradients were last written."""

    missing: set[int] = field(default_factory=set)  # uses that have not run backward
    started: dict[str, Handle] = field(default_factory=dict)  # collectives, in order, with their handles
    awaited: set[str] = field(default_factory=set)
    updated: bool = True


class Rules:
    """Check one schedule: a class, or any object with the ``collectives`` and ``extras`` that it starts.

    For ``judged`` see ``Fabric``.
    """

    def __init__(self, name: str, buckets: Cut, schedule: Any, *, judged: bool = False, route: Route = FULL) -> None:
        self.name, self.buckets, self.schedule = name, buckets, schedule
        self.collectives, self.extras = schedule.collectives, schedule.extras
        self.judged, self.route = judged, route
        self.reduced = 0  # buckets of this iteration
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
        hook, use = self.point
        return f"{hook}({', '.join(map(str, use))})" if hook else "its order"

    def follow(self, order: Sequenced | None) -> None:
        """Check an iteration's order: the global gradient check comes after the last reduction."""
        given = None if order is None else tuple(order)
        if given == self.followed:  # checked in an earlier iteration
            return
        keys = [(collective, bucket.index) for collective in self.collectives for bucket in self.buckets]
        if order is not None and not are_all(order, keys):
            allowed = "a list of all pairs of a collective and the index of a bucket, each once, or in all its portions"
            self.refuse(f"must have an order that is {allowed}, not {order!r:.200}")
        backs = [not reduces(collective) for collective, *_ in order or ()]
        if self.judged and backs != sorted(backs):
            what = "after which clipping, loss scaling or a statistic looks at all gradients"
            self.refuse(f"has an order in which an all_gather goes before the last reduction, {what}")
        self.followed = given

    def before_layer(self, use: int) -> None:
        """Check that a forward layer's parameters have been updated."""
        for bucket in self.buckets.needed_by(use):
            entry = self.entries[bucket]
            if not entry.updated:
                lacks = "has not been updated" if entry.awaited else "was not waited for"
                self.refuse(f"lets layer {use} run though {bucket} {lacks}")

    def wrote(self, use: int) -> None:
        """Record that a layer has written its gradients in backward."""
        for bucket in self.buckets.needed_by(use):
            if self.entries[bucket].updated:
                self.entries[bucket] = Entry(missing=set(bucket.uses), updated=False)
            entry = self.entries[bucket]
            if entry.started:
                started = next(iter(entry.started))
                self.refuse(f"has started the {started} of {bucket} before layer {use} wrote its gradients")
            entry.missing.discard(use)

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
            missing = ", ".join(map(str, sorted(entry.missing or set(bucket.uses))))
            self.refuse(f"starts the {collective} of {bucket} before layer {missing} wrote gradients")
        self.reduced += reducing

    def started(self, handle: Handle) -> None:
        collective, index = handle.key
        self.entries[self.buckets[index]].started[collective] = handle

    def start_extra(self, extra: str, bucket: Bucket) -> None:
        """Check an extra: the schedule must name it, and values must be new."""
        if extra not in self.extras:
            allowed = ", ".join(self.extras) or "none"
            self.refuse(f"starts the {extra} of {bucket}, which is not among its extras, {allowed}")
        entry = self.entries.get(bucket)
        if EXTRAS[extra].line == "values" and (entry is None or not (entry.updated or entry.missing)):
            self.refuse(f"starts the {extra} of {bucket}, whose values are not the new ones")

    def awaited(self, handle: Handle) -> None:
        """Record a wait; ignore collectives of earlier iterations."""
        collective, index = handle.key
        entry = self.entries[self.buckets[index]]
        if entry.started.get(collective) is handle:
            entry.awaited.add(collective)

    def update(self, bucket: Bucket) -> None:
        """Check before an update that the bucket's gradients are complete."""
        entry = self.entries.get(bucket)
        if entry is None or entry.updated:
            self.refuse(f"updates {bucket}, which has no new gradients")
        if not {"all_reduce", "all_gather"}.intersection(entry.awaited):
            found = f"its {[*entry.started][-1]} was waited for" if entry.started else "its gradients were reduced"
            self.refuse(f"updates {bucket} before {found}")
        self.check_judged(f"updates {bucket}")
        entry.updated = True

    def check_judged(self, what: str) -> None:
        """Check before gradients are used that a global check has all reductions."""
        if self.judged and self.reduced % len(self.entries):
            before = "before all buckets are on their way"
            self.refuse(f"{what} {before}, which clipping, loss scaling or a statistic needs")

    def end_backward(self, delayed: Sequence[int] = ()) -> None:
        """Check that all buckets are on their way, and no weight gradients are ``delayed``."""
        if delayed:
            layers = ", ".join(map(str, delayed))
            self.refuse(f"has delayed the weights' gradients of layer {layers}, and never let it write them")
        for bucket, entry in self.entries.items():
            if not entry.updated and not entry.started:
                self.refuse(f"forgets {bucket}: it has started no collective for it")
        self.iteration += 1

    @property
    def idle(self) -> bool:
        return all(entry.updated for entry in self.entries.values())

    @property
    def all_started(self) -> bool:
        """Tell whether updates need no further start."""
        last = {"all_reduce", "all_gather"}
        return all(entry.updated or not last.isdisjoint(entry.started) for entry in self.entries.values())

    def flushed(self) -> None:
        for bucket, entry in self.entries.items():
            if not entry.updated:
                self.refuse(f"forgets {bucket}: it has not updated it")


def are_all(order: Sequenced, keys: Sequence[Key]) -> bool:
    """Tell whether an order has each collective once, or all its portions in sequence."""
    due = dict.fromkeys(keys, 0)
    try:
        for turn in (Turn(*each) for each in order):
            first, last, of = turn.portion
            if due.get(turn.key) != first or not first < last <= of:
                return False
            due[turn.key] = -1 if last == of else last
    except TypeError:
        return False
    return all(done == -1 for done in due.values())
