"""Where the line is cut; and, once layers have been timed, fusion by time and the order of an iteration.

    iteration   1 (not timed) | 2 | 3 | flush, ask what collectives cost, decide | 4 ...

Every rank decides from the same figures, the means over ranks, and they compare what they decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array
from dear_mpi.training.costs.wire_cost import whole_cost
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fusion.by_time import PassTimes, by_time, check_file, is_by_time
from dear_mpi.training.fusion.policies import USUAL, fused
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.in_time import in_time
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.log.log import pass_s
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.tuning import tuning_of
from dear_mpi.training.tuning.tuned_fusion import TunedFusion
from dear_mpi.training.virtual_trainer import best_order
from dear_mpi.training.weighing import TIMED, Weighing


@dataclass(frozen=True)
class Start:
    """What a fusion starts with."""

    fusion: str  # that was asked for
    buckets: Cut  # until more is known
    by_time: str | None  # the policy that decides once layers have been timed
    tuning: TunedFusion | None  # what tries other buckets from then on


class Decisions:
    """Collective: looks on as a session trains, and decides when enough has been seen.

    Args:
        group: whose buckets it cuts.
        name: of the session, for errors.

    Attributes:
        fusion: the policy that was asked for, or decided.
        by_time: the fusion that is still to be decided, or None.
        waiting: the schedules that are to decide an order, with the times of each iteration since buckets were cut.
        weighing: what shares out by speed, before all else is decided.
    """

    def __init__(self, group: WorkerGroup, name: str) -> None:
        self.group, self.name = group, name
        self.orders: dict[tuple[str, Cut], Sequenced | None] = {}  # that were decided before
        self.tuning, self.weighing = TunedFusion(group.options.fusion), Weighing(group)

    def first_cut(self, fusion: str) -> Cut:
        """The first buckets; not collective. Raises ValueError as ``planned``."""
        start = self.planned(fusion)
        self.begin(start)
        return start.buckets

    def planned(self, fusion: str) -> Start:
        """What a fusion starts with: all schedules were rehearsed with its buckets. Not collective.

        Raises:
            ValueError: the policy is not allowed, what is to be tuned cannot be, each of several schedules would have
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
        """Let a schedule rehearse with these buckets, and with an order if one was decided."""
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
        """Buckets have been cut as a fusion starts."""
        self.fusion, self.tuning, self.by_time = start.fusion, start.tuning or self.tuning, start.by_time
        self.waiting: dict[str, list[Array]] = {}
        for name, schedule in self.group.schedules.items():
            if self.by_time is None and (name, start.buckets) in self.orders:
                self.group.trainers[name].schedule.take(self.orders[name, start.buckets])
                self.prepare_turns()
            elif schedule.foresees or self.by_time is not None:
                self.waiting[name] = []

    def prepare_turns(self) -> None:
        """Make the plans that the orders of all schedules need."""
        orders = (trainer.schedule.order for trainer in self.group.trainers.values())
        self.group.fabric.prepare_turns([order for order in orders if order])

    def check_room(self, iterations: int, *, profiled: bool) -> dict[str, Any]:
        """See that so many iterations decide what is to be decided, and that one more is left; else ValueError."""
        first = self.weighing.needs
        if first or (self.waiting and (profiled or self.by_time)):
            needs = first + (1 + TIMED) * bool(self.waiting)
            what = "a profile is of the iterations after them" if profiled else "at least one has to follow"
            decided = " and ".join([*["weights"] * bool(first), *["an order or a fusion"] * bool(self.waiting)])
            said = f"the first {needs} decide {decided}, and {what}"
            if iterations <= needs:
                raise ValueError(f"iterations must be more than {needs}, not {iterations}: {said}")
        needs = self.tuning.needs and first + self.tuning.needs
        if needs and iterations <= needs:
            said = f"tuning takes {needs} iterations, and at least one has to follow"
            raise ValueError(f"iterations must be more than {needs}, not {iterations}: {said}")
        return {}

    def look(self, name: str) -> None:
        """An iteration of a schedule is over."""
        if not self.weighing.over:
            self.weighing.look(name)
            if self.weighing.over:
                self.begin(Start(self.fusion, self.group.buckets, self.by_time, None))
            return
        if name in self.waiting:
            fabric = self.group.fabric
            self.waiting[name].append(pass_s(fabric.log.last, fabric.seconds, len(self.group.uses)))
            if len(self.waiting[name]) > TIMED:
                self.decide(name, np.mean(self.waiting.pop(name)[1:], axis=0))
            return
        tuning = self.tuning
        tuning.schedule = tuning.schedule or name
        fusion = tuning.look(name) if name == tuning.schedule and not tuning.over else None
        if fusion is not None:
            self.cut(fusion, tuned=True)

    @property
    def settled(self) -> bool:
        """Whether nothing is to be decided any more."""
        return self.tuning.over and not self.waiting and self.weighing.over

    def decide(self, name: str, own_s: Array) -> None:
        """Cut buckets by time, if that is to be done; then let the schedule order its iteration."""
        group = self.group
        group.flush()
        gathered = group.world.transport.gather_values(own_s)
        forward_s, backward_s, weights_s, exchange_s = np.mean(gathered, axis=0).tolist()
        if self.by_time is not None:
            self.cut(self.found_by_time(self.by_time, name, PassTimes(forward_s, backward_s)))
            self.waiting.pop(name, None)
        schedule = group.trainers[name].schedule
        if schedule.foresees:
            price = group.prices.of((*schedule.collectives, *schedule.extras))
            costs = Costs(
                forward_s=forward_s,
                backward_s=backward_s,
                weights_s={use: weights_s[use] for use in group.split},
                exchange_s={use: seconds for use, seconds in enumerate(exchange_s) if seconds},
                price=price,
                parts=group.options.accumulate,
                ranks=group.world.size,
                portions=group.fabric.portions,
            )
            agree(group.world.transport, self.name, lambda: self.order(name, costs))
            self.prepare_turns()

    def found_by_time(self, policy: str, name: str, times: PassTimes) -> str:
        """What a policy says to the times of this schedule's layers."""
        group, wanted = self.group, self.group.schedules[name].collectives
        prices = group.prices.of(wanted)
        cost = whole_cost(wanted, group.route, group.layout, lambda probe: prices)
        found: list[str] = []

        def choose() -> dict[str, Any]:  # a user's function may fail on one rank alone
            found.append(by_time(policy, group.layout, times, cost))
            return {"fusion": found[0]}

        agree(group.world.transport, self.name, choose)
        return found[0]

    def order(self, name: str, costs: Costs) -> dict[str, Any]:
        """Let a schedule order its iteration, and rehearse that; what ranks compare. Not collective."""
        group = self.group
        schedule, kind = group.trainers[name].schedule, group.schedules[name]
        rules = group.rules(name, group.buckets)
        rules.point = ("ordered", ())
        order = in_time(rules, lambda: best_order(schedule, kind, rules, costs))
        self.rehearse(name, group.buckets, order=order)
        self.orders[name, group.buckets] = order
        schedule.take(order)
        return {f"the order of {name}": sha256(repr(order).encode()).hexdigest()}
