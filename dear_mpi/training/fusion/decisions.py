"""Decide where to cut the flat buffer and, once layers are timed, rank speeds, fusion by time and the order.

    iteration   1 (not timed) | 2 | 3 | flush, ask what collectives cost, decide | 4 ...

Rank speeds that are to be ``measured`` come first, in the same way. All ranks decide from the same figures, gathered
from all ranks, and compare their decisions.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.training.buckets.layout import Cut
from dear_mpi.training.buckets.owners import MEASURED, measured
from dear_mpi.training.fabric.fabric import Sequenced
from dear_mpi.training.fabric.virtual import Costs, whole_cost
from dear_mpi.training.fusion import USUAL, PassTimes, Tuning, by_time, check_file, fused, is_by_time
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.virtual_trainer import best_order, in_time, rehearse

if TYPE_CHECKING:
    from dear_mpi.training.events.profiler import Profiler

TIMED = 2  # iterations, after the first one


class Start(NamedTuple):
    """Hold the initial plan of a fusion."""

    fusion: str  # the policy that the user asked for
    buckets: Cut  # the first buckets
    by_time: str | None  # the policy that decides once layers are timed
    tuning: Tuning | None  # tries other buckets from then on


class Decisions:
    """Decide buckets and orders while a session trains, once enough iterations are timed. Collective.

    Attributes:
        name: of the session, for errors.
        fusion: the policy that the user asked for, or the decided one.
        by_time: the fusion that is still undecided, or None.
        waiting: the schedules whose order or fusion is undecided, with their times since the last cut.
    """

    def __init__(self, group: WorkerGroup, name: str) -> None:
        self.group, self.name = group, name
        self.weighing = group.options.weights == MEASURED  # whether rank speeds are undecided
        self.own_s: list[float] = []  # of this rank's layers, until rank speeds are decided
        self.tuning = Tuning(group.options.fusion)
        self.orders: dict[tuple[str, Cut], Sequenced | None] = {}  # decided before

    def planned(self, fusion: str) -> Start:
        """Return the initial plan of a fusion, after a dry run of all schedules with its buckets. Not collective.

        Raises ValueError if the policy is not allowed or a schedule breaks a rule.
        """
        group, schedules = self.group, self.group.schedules
        if fusion == "own" and len(schedules) > 1:
            raise ValueError(f"fusion 'own' needs one schedule, not {', '.join(schedules)}")
        foresees = any(schedule.foresees for schedule in schedules.values())
        tuning = None
        if (way := fusion.partition(":")[0]) in ("auto", "bo"):
            from dear_mpi.training.fusion.tuning import ByPrediction, ByTrials  # few sessions tune

            kind = ByTrials if way == "bo" else ByPrediction
            tuning = kind(group, fusion, before=(1 + TIMED) * foresees)
        policy = own_fusion(fusion, next(iter(schedules.values()))) if tuning is None else tuning.fusion
        check_file(policy)
        late = is_by_time(policy)
        buckets = fused(USUAL if late else policy, group.layout)
        for name in schedules:
            self.rehearse(name, buckets)
        return Start(fusion, buckets, policy if late else None, tuning)

    def rehearse(self, name: str, buckets: Cut, *, order: Sequenced | None = None) -> None:
        group = self.group
        how: dict[str, Any] = {"split": group.split, "accumulate": group.passes, "order": order}
        rehearse(group.schedules[name], group.rules(name, buckets), len(group.layout.calls), **how)

    def cut(self, fusion: str, *, tuned: bool = False) -> None:
        """Continue with other buckets; stop tuning unless ``tuned``. Raises ArgumentError if that is not allowed."""
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

    def begin(self, start: Start) -> Cut:
        """Follow a plan; return its buckets. Not collective."""
        self.fusion, self.tuning, self.by_time = start.fusion, start.tuning or self.tuning, start.by_time
        self.waiting: dict[str, Profiler | None] = {}
        for name, schedule in self.group.schedules.items():
            if self.by_time is None and (name, start.buckets) in self.orders:
                self.group.trainers[name].schedule.take(self.orders[name, start.buckets])
                self.prepare_turns()
            elif schedule.foresees or self.by_time is not None:
                self.waiting[name] = None
        return start.buckets

    def prepare_turns(self) -> None:
        """Make the plans for the orders of all schedules."""
        schedules = (trainer.schedule for trainer in self.group.trainers.values())
        self.group.fabric.prepare_turns([each.order for each in schedules if each.order])

    def check_room(self, iterations: int, *, done: int, profiled: bool) -> dict[str, Any]:
        """Raise ValueError if ``iterations`` are too few to decide and to leave one more.

        If only the ``done`` iterations before a checkpoint make them too few, decide nothing: rank 0 prints a note.
        """
        timed = bool(self.waiting) and (profiled or self.by_time is not None)
        decided = {
            "weights": self.weighing,
            "a fusion by trials": bool(self.tuning.needs),
            "an order or a fusion": timed,
        }
        # A tuner's number includes the orders.
        needs = (1 + TIMED) * self.weighing + (self.tuning.needs or (1 + TIMED) * timed)
        said = f"the first {needs} decide {' and '.join(each for each, due in decided.items() if due)}"
        if needs and iterations <= (least := needs + done * profiled):
            after = f"after {done} of them " * (least > needs)
            raise ValueError(f"iterations must be more than {least}, not {iterations}: {after}{said}")
        if needs and iterations <= done + needs:
            self.weighing, self.tuning.over = False, True
            self.fusion = USUAL if self.by_time else self.tuning.fusion
            self.waiting, self.by_time = {} if self.by_time else self.waiting, None
            from dear_mpi.reporting.terminal import note

            left = f"too few iterations are left, {iterations - done}: {said}"
            note(self.group.world, f"{left}; the run goes on with fusion {self.fusion}")
        return {}

    def due(self, name: str) -> str:
        """Return what is decided next while this schedule runs; "" for nothing."""
        if self.weighing:
            return "rank speeds"
        return "fusion by time, order" if name in self.waiting else "" if self.tuning.over else "fusion by trials"

    def look(self, name: str) -> None:
        """Count an iteration of a schedule, and decide if enough were timed."""
        match self.due(name):
            case "rank speeds":
                self.weigh(name)
            case "fusion by time, order":
                self.time(name)
            case "fusion by trials":
                self.tuning.schedule = self.tuning.schedule or name
                fusion = self.tuning.look(name) if name == self.tuning.schedule else None
                if fusion is not None:
                    self.cut(fusion, tuned=True)

    def time(self, name: str) -> None:
        """Note the times of an iteration, except of the first one; decide after enough of them."""
        profiler = self.waiting[name]
        if profiler is None:
            from dear_mpi.training.events.profiler import Profiler  # few schedules wait

            self.waiting[name] = Profiler(self.group, name)
            return
        profiler.note()
        if profiler.noted == TIMED:
            del self.waiting[name]
            self.decide(name, profiler)

    def weigh(self, name: str) -> None:
        """Add the times of an iteration; after enough iterations, share out the flat buffer by rank speeds."""
        trainer, group = self.group.trainers[name], self.group
        self.own_s.append(trainer.times.forward_s + trainer.times.backward_s)
        if len(self.own_s) <= TIMED:
            return
        transport = group.world.transport
        group.flush()
        own = float(np.mean(self.own_s[1:])), trainer.examples
        weights = measured(*zip(*transport.gather_values(own), strict=True))
        agree(transport, "weights", lambda: {"weights": weights})
        group.share_out(weights)
        self.weighing = False
        self.begin(Start(self.fusion, group.buckets, self.by_time, None))

    def decide(self, name: str, profiler: Profiler) -> None:
        """Cut buckets by time, if asked to; then let the schedule order its iteration.

        Collectives cost their measured time, also on an emulated link. An order for a faster link would make the most
        urgent buckets wait for late ones (``docs/decisions/0028``).
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
        """Return the cut that a policy makes with these costs."""
        group, wanted = self.group, self.group.schedules[name].collectives
        cost = whole_cost(wanted, group.route, group.layout, lambda probe: costs.price)
        found: list[str] = []

        def choose() -> dict[str, Any]:  # a user's function may fail on a single rank
            found.append(by_time(policy, group.layout, PassTimes(costs.forward_s, costs.backward_s), cost))
            return {"fusion": found[0]}

        agree(group.world.transport, self.name, choose)
        return found[0]

    def order(self, name: str, costs: Costs) -> dict[str, Any]:
        """Let a schedule order its iteration, do a dry run of it, and return the facts to compare. Not collective."""
        group = self.group
        schedule, rules = group.trainers[name].schedule, group.rules(name, group.buckets)
        rules.point = ("ordered", ())
        order = in_time(rules, lambda: best_order(schedule, rules, costs))
        self.rehearse(name, group.buckets, order=order)
        self.orders[name, group.buckets] = order
        schedule.take(order)
        return {f"the order of {name}": sha256(repr(order).encode()).hexdigest()}
