"""What is decided once layers have been timed: the order of an iteration, and fusion by time.

    iteration   1 (not timed) | 2 | 3 | flush, ask what collectives cost, decide | 4 ...

Every rank decides from the same figures, the means over ranks, and they compare what they decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array
from dear_mpi.training.fabric import Fabric
from dear_mpi.training.fabric.foresight import Nominal
from dear_mpi.training.fabric.order import Key
from dear_mpi.training.fabric.rules import carried_out
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.merged import BY_TIME, by_time
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.tuning import Tuning, tuning_of
from dear_mpi.training.wire_cost import WireCost, price_of, wire_costs

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

__all__ = ["Decisions"]

TIMED = 2  # iterations, behind the first one
UNTIL_TIMED = "25MB"


class Decisions:
    """Collective: looks on as a session trains, and decides when enough has been seen.

    Attributes:
        policy: the fusion by time that is still to be decided, or None.
        waiting: the schedules that are to decide an order, with the times of each iteration since buckets were cut.
        tuning: the fusion that is tuned, if one is.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.costs: dict[str, WireCost] = {}
        self.orders: dict[tuple[str, Cut], Sequence[Key] | None] = {}  # that were decided before
        self.policy: str | None = None
        self.tuning = Tuning(session.options.fusion)
        self.coming: Tuning | None = None  # until all ranks have agreed on it

    def first_fusion(self, fusion: str, itemsize: int) -> str:
        """Where buckets are cut until times are known; an element has ``itemsize`` bytes on the wire.

        Raises:
            ValueError: each of several schedules would have its own, or what is to be tuned cannot be.
        """
        self.coming = tuning_of(self.session, fusion, itemsize, before=1 + TIMED)
        if self.coming is not None:
            return self.coming.fusion
        if fusion == "own" and len(self.session.schedules) > 1:
            raise ValueError(f"fusion 'own' needs one schedule, not {', '.join(self.session.schedules)}")
        policy = own_fusion(fusion, next(iter(self.session.schedules.values())))
        return UNTIL_TIMED if policy in BY_TIME else policy

    def begin(self, fusion: str) -> None:
        """Buckets have been cut by this policy, or by that of ``first_fusion``."""
        self.tuning, self.coming = self.coming or self.tuning, None
        schedules = self.session.schedules
        policy = own_fusion(fusion, next(iter(schedules.values())))
        self.policy = policy if policy in BY_TIME else None
        self.waiting: dict[str, list[Array]] = {}
        for name, schedule in schedules.items():
            if self.policy is None and (name, self.session.buckets) in self.orders:
                self.session.trainers[name].schedule.order = self.orders[name, self.session.buckets]
            elif schedule.foresees or self.policy is not None:
                self.waiting[name] = []

    def look(self, name: str) -> None:
        """An iteration of a schedule is over."""
        if name not in self.waiting:
            self.tuning.note(name)
            return
        self.waiting[name].append(self.session.trainers[name].pass_s())
        if len(self.waiting[name]) > TIMED:
            self.decide(name, np.mean(self.waiting.pop(name)[1:], axis=0))

    @property
    def settled(self) -> bool:
        """Whether nothing is to be decided any more."""
        return self.tuning.over and not self.waiting

    def decide(self, name: str, own_s: Array) -> None:
        """Cut buckets by time, if that is to be done; then let the schedule order its iteration."""
        session = self.session
        session.flush()
        forward_s, backward_s = np.mean(session.world.transport.gather_values(own_s), axis=0).tolist()
        if self.policy is not None:
            parts = carried_out(session.schedules[name].collectives, sharded=session.options.sharded)
            costs = self.cost_of(parts)
            cost = WireCost(sum(costs[each].alpha for each in parts), sum(costs[each].beta for each in parts))
            session.cut(by_time(self.policy, session.layout, session.arena.wire.itemsize, backward_s, cost))
            self.waiting.pop(name, None)
        schedule = session.trainers[name].schedule
        if schedule.foresees:
            price = price_of(self.cost_of(schedule.collectives))
            nominal = Nominal(forward_s, backward_s, price, judged=session.options.judged)
            agree(session.world.transport, session.name, lambda: self.order(name, nominal))

    def order(self, name: str, nominal: Nominal) -> dict[str, Any]:
        """Let a schedule order its iteration, and rehearse that; what ranks compare. Not collective."""
        session = self.session
        schedule, kind = session.trainers[name].schedule, session.schedules[name]
        order = tuple(schedule.ordered(nominal) or ())

        class Ordered(kind):  # type: ignore[misc, valid-type]
            def __init__(self, fabric: Fabric) -> None:
                super().__init__(fabric)
                self.order = order or None

        uses, parts = len(session.layout.uses), session.options.accumulate
        rehearse(Ordered, session.rules(name, session.buckets), uses, accumulate=parts)
        self.orders[name, session.buckets] = schedule.order = order or None
        return {f"the order of {name}": sha256(repr(order).encode()).hexdigest()}

    def cost_of(self, collectives: Iterable[str]) -> dict[str, WireCost]:
        """What collectives cost, each asked for once."""
        new = [each for each in collectives if each not in self.costs]
        self.costs |= wire_costs(self.session.fabric, new)
        return self.costs
