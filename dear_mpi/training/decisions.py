"""Where the line is cut; and, once layers have been timed, fusion by time and the order of an iteration.

    iteration   1 (not timed) | 2 | 3 | flush, ask what collectives cost, decide | 4 ...

Weights that are to be ``measured`` come first, in the same way. Every rank decides from the same figures, which are of
all ranks, and they compare what they decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array
from dear_mpi.reporting.terminal import note
from dear_mpi.training.fabric.costs import Costs, whole_cost
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fusion import USUAL, PassTimes, by_time, check_file, fused, is_by_time
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.line.weights import MEASURED, measured
from dear_mpi.training.log.log import pass_s
from dear_mpi.training.profiles.profiler import Profiler
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.tuning.tuned_fusion import Tuning, tuning_of
from dear_mpi.training.virtual_trainer import best_order, in_time, rehearse

TIMED = 2  # iterations, after the first one


@dataclass(frozen=True)
class Start:
    """What a fusion starts with."""

    fusion: str  # that was asked for
    buckets: Cut  # until more is known
    by_time: str | None  # the policy that decides once layers have been timed
    tuning: Tuning | None  # what tries other buckets from then on


class Weighing:
    """Collective: looks on as the first iterations of a session pass, until weights are measured, if they are to be."""

    def __init__(self, group: WorkerGroup) -> None:
        self.group, self.over = group, group.options.weights != MEASURED
        self.own_s: list[float] = []

    @property
    def needs(self) -> int:
        return 0 if self.over else 1 + TIMED  # iterations until it is over

    def look(self, name: str, times: Array) -> None:
        """An iteration of a schedule took these times; after enough of them, the line is shared out anew."""
        self.own_s.append(float(times.sum()))
        if len(self.own_s) <= TIMED:
            return
        group, transport = self.group, self.group.world.transport
        group.flush()
        own = float(np.mean(self.own_s[1:])), group.trainers[name].examples
        weights = measured(*zip(*transport.gather_values(own), strict=True))
        agree(transport, "weights", lambda: {"weights": weights})
        group.share_out(weights)
        self.over = True


class Decisions:
    """Collective: looks on as a session trains, and decides when enough has been seen.

    Attributes:
        name: of the session, for errors.
        fusion: the policy that was asked for, or decided.
        by_time: the fusion that is still to be decided, or None.
        waiting: the schedules that are to decide an order or a fusion; with what their iterations took since buckets
            were cut, after the first one.
    """

    def __init__(self, group: WorkerGroup, name: str) -> None:
        self.group, self.name = group, name
        self.weighing, self.tuning = Weighing(group), Tuning(group.options.fusion)
        self.orders: dict[tuple[str, Cut], Sequenced | None] = {}  # that were decided before

    def first_cut(self, fusion: str) -> Cut:
        """The first buckets; not collective, and raises as ``planned``."""
        start = self.planned(fusion)
        self.begin(start)
        return start.buckets

    def planned(self, fusion: str) -> Start:
        """What a fusion starts with: all schedules were rehearsed with its buckets. Not collective.

        ValueError if the policy is not allowed, what is to be tuned cannot be, each of several schedules would have
        buckets of its own, or a schedule breaks a rule.
        """
        group, schedules = self.group, self.group.schedules
        if fusion == "own" and len(schedules) > 1:
            raise ValueError(f"fusion 'own' needs one schedule, not {', '.join(schedules)}")
        foresees = any(schedule.foresees for schedule in schedules.values())
        tuning = tuning_of(group, fusion, before=(1 + TIMED) * foresees)
        policy = own_fusion(fusion, next(iter(schedules.values()))) if tuning is None else tuning.fusion
        check_file(policy)
        late = is_by_time(policy)
        buckets = fused(USUAL if late else policy, group.layout)
        for name in schedules:
            self.rehearse(name, buckets)
        return Start(fusion, buckets, policy if late else None, tuning)

    def rehearse(self, name: str, buckets: Cut, *, order: Sequenced | None = None) -> None:
        group = self.group
        how: dict[str, Any] = {"split": group.split, "accumulate": group.options.accumulate, "order": order}
        rehearse(group.schedules[name], group.rules(name, buckets), len(group.layout.uses), **how)

    def cut(self, fusion: str, *, tuned: bool = False) -> None:
        """Go on with other buckets, and tune no more, unless ``tuned``; ArgumentError if the policy is not allowed."""
        self.group.flush()
        found: list[Start] = []

        def plan() -> dict[str, Any]:
            found.append(self.planned(fusion))
            return {"fusion": fusion}

        agree(self.group.world.transport, self.name, plan)
        if not tuned:
            self.tuning.over = True
        self.group.cut(found[0].buckets)
        self.begin(found[0])

    def begin(self, start: Start) -> None:
        """Buckets have been cut."""
        self.fusion, self.tuning, self.by_time = start.fusion, start.tuning or self.tuning, start.by_time
        self.waiting: dict[str, Profiler | None] = {}
        for name, schedule in self.group.schedules.items():
            if self.by_time is None and (name, start.buckets) in self.orders:
                self.group.trainers[name].schedule.take(self.orders[name, start.buckets])
                self.prepare_turns()
            elif schedule.foresees or self.by_time is not None:
                self.waiting[name] = None

    def prepare_turns(self) -> None:
        """Make the plans that the orders of all schedules need."""
        schedules = (trainer.schedule for trainer in self.group.trainers.values())
        self.group.fabric.prepare_turns([each.order for each in schedules if each.order])

    def check_room(self, iterations: int, *, done: int, profiled: bool) -> dict[str, Any]:
        """Raise ValueError if ``iterations`` are too few to decide and leave one more. If those ``done`` before a
        checkpoint leave too few, decide nothing, and rank 0 notes it; a profile raises."""
        first, due = self.weighing.needs, dict[int, str]()  # from a number of iterations to what decides with them
        if first or (self.waiting and (profiled or self.by_time)):
            needs = first + (1 + TIMED) * bool(self.waiting)
            what = "a profile is of the iterations after them" if profiled else "at least one has to follow"
            decided = " and ".join([*["weights"] * bool(first), *["an order or a fusion"] * bool(self.waiting)])
            due[needs] = f"the first {needs} decide {decided}, and {what}"
        if self.tuning.needs:
            needs = first + self.tuning.needs
            due.setdefault(needs, f"tuning takes {needs} iterations, and at least one has to follow")
        for needs, said in due.items():
            if iterations <= (least := needs + done * profiled):
                after = f"after {done} of them " * (least > needs)
                raise ValueError(f"iterations must be more than {least}, not {iterations}: {after}{said}")
        if few := "; ".join(said for needs, said in due.items() if iterations <= done + needs):
            self.weighing.over = self.tuning.over = True
            self.fusion = USUAL if self.by_time else self.tuning.fusion
            self.waiting, self.by_time = {} if self.by_time else self.waiting, None
            left = f"too few iterations are left, {iterations - done}: {few}"
            note(self.group.world, f"{left}; the run goes on with fusion {self.fusion}")
        return {}

    def look(self, name: str) -> None:
        """An iteration of a schedule is over."""
        if not self.weighing.over:
            self.weighing.look(name, self.times())
            if self.weighing.over:
                self.begin(Start(self.fusion, self.group.buckets, self.by_time, None))
            return
        if name in self.waiting:
            profiler = self.waiting[name]
            if profiler is None:
                self.waiting[name] = Profiler(self.group, name)
                return
            profiler.note()
            if profiler.noted == TIMED:
                del self.waiting[name]
                self.decide(name, profiler)
            return
        tuning = self.tuning
        tuning.schedule = tuning.schedule or name
        fusion = tuning.look(name) if name == tuning.schedule and not tuning.over else None
        if fusion is not None:
            self.cut(fusion, tuned=True)

    def times(self) -> Array:
        """Of the last iteration, see ``pass_s``."""
        fabric = self.group.fabric
        return pass_s(fabric.log.last, fabric.seconds, len(self.group.uses))

    @property
    def settled(self) -> bool:
        """Whether nothing is to be decided any more."""
        return self.tuning.over and not self.waiting and self.weighing.over

    def decide(self, name: str, profiler: Profiler) -> None:
        """Cut buckets by time, if that is to be done; then let the schedule order its iteration.

        Collectives cost what they took, also on an emulated link. In an order for a faster wire, the most urgent
        buckets would wait for late ones that there is no time for (``docs/decisions/0028``).
        """
        group = self.group
        group.flush()
        costs = profiler.costs(timed=True)
        costs = replace(costs, price=profiler.beside_layers(costs.price))
        if self.by_time is not None:
            self.cut(self.found_by_time(self.by_time, name, costs))
            self.waiting.pop(name, None)
        if group.trainers[name].schedule.foresees:
            costs = replace(costs, work=group.arena.sharing.work)
            agree(group.world.transport, self.name, lambda: self.order(name, costs))
            self.prepare_turns()

    def found_by_time(self, policy: str, name: str, costs: Costs) -> str:
        """What a policy says to these costs."""
        group, wanted = self.group, self.group.schedules[name].collectives
        cost = whole_cost(wanted, group.route, group.layout, lambda probe: costs.price)
        found: list[str] = []

        def choose() -> dict[str, Any]:  # a user's function may fail on one rank alone
            found.append(by_time(policy, group.layout, PassTimes(costs.forward_s, costs.backward_s), cost))
            return {"fusion": found[0]}

        agree(group.world.transport, self.name, choose)
        return found[0]

    def order(self, name: str, costs: Costs) -> dict[str, Any]:
        """Let a schedule order its iteration, and rehearse that; what ranks compare. Not collective."""
        group = self.group
        schedule, rules = group.trainers[name].schedule, group.rules(name, group.buckets)
        rules.point = ("ordered", ())
        order = in_time(rules, lambda: best_order(schedule, rules, costs))
        self.rehearse(name, group.buckets, order=order)
        self.orders[name, group.buckets] = order
        schedule.take(order)
        return {f"the order of {name}": sha256(repr(order).encode()).hexdigest()}
