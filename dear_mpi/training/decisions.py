"""What is decided once layers have been timed: the order of an iteration, and fusion by time. Tuning comes after that.

    iteration   1 (not timed) | 2 | 3 | flush, ask what collectives cost, decide | 4 ...

Every rank decides from the same figures, the means over ranks, and they compare what they decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array
from dear_mpi.training.costs.wire_cost import whole_cost
from dear_mpi.training.fabric import Fabric
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fusion.by_time import PassTimes, by_time, check_file, is_by_time
from dear_mpi.training.fusion.policies import USUAL
from dear_mpi.training.in_time import in_time
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.log.times import pass_s
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.tuning import Tuning, tuning_of
from dear_mpi.training.virtual_trainer import Costs, best_order

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

TIMED = 2  # iterations, after the first one


@dataclass(frozen=True)
class Start:
    """What a fusion starts with.

    Attributes:
        fusion: the policy by which buckets are cut until more is known.
        by_time: the policy that decides once layers have been timed, or None.
        tuning: what tries other buckets from then on, or None.
    """

    fusion: str
    by_time: str | None = None
    tuning: Tuning | None = None


class Decisions:
    """Collective: looks on as a session trains, and decides when enough has been seen.

    Attributes:
        by_time: the fusion that is still to be decided, or None.
        waiting: the schedules that are to decide an order, with the times of each iteration since buckets were cut.
        tuning: the fusion that is tuned, if one is.
    """

    def __init__(self, session: Session) -> None:
        self.session: Session = proxy(session)  # no cycle: the memory of a session that is over goes at once
        self.orders: dict[tuple[str, Cut], Sequenced | None] = {}  # that were decided before
        self.by_time: str | None = None
        self.tuning = Tuning(session.options.fusion)

    def start_of(self, fusion: str) -> Start:
        """What a fusion starts with; not collective.

        Raises:
            ValueError: each of several schedules would have its own, or what is to be tuned cannot be.
        """
        tuning = tuning_of(self.session, fusion, before=1 + TIMED)
        if tuning is not None:
            return Start(tuning.fusion, tuning=tuning)
        if fusion == "own" and len(self.session.schedules) > 1:
            raise ValueError(f"fusion 'own' needs one schedule, not {', '.join(self.session.schedules)}")
        policy = own_fusion(fusion, next(iter(self.session.schedules.values())))
        check_file(policy)
        return Start(USUAL, by_time=policy) if is_by_time(policy) else Start(policy)

    def begin(self, start: Start) -> None:
        """Buckets have been cut as a fusion starts."""
        self.tuning, self.by_time = start.tuning or self.tuning, start.by_time
        self.waiting: dict[str, list[Array]] = {}
        for name, schedule in self.session.schedules.items():
            if self.by_time is None and (name, self.session.buckets) in self.orders:
                self.session.trainers[name].schedule.order = self.orders[name, self.session.buckets]
                self.prepare_turns()
            elif schedule.foresees or self.by_time is not None:
                self.waiting[name] = []

    def prepare_turns(self) -> None:
        """Collective: make the plans that the orders of all schedules need."""
        orders = (trainer.schedule.order for trainer in self.session.trainers.values())
        self.session.fabric.prepare_turns([order for order in orders if order])

    def check_room(self, iterations: int, *, profiled: bool) -> dict[str, Any]:
        """See that so many iterations are enough for what is to be decided, and that one is left after that.

        Raises:
            ValueError: they are not.
        """
        if self.waiting and (profiled or self.by_time) and iterations <= 1 + TIMED:
            what = "a profile is of the iterations after them" if profiled else "at least one has to follow"
            said = f"the first {1 + TIMED} decide an order or a fusion, and {what}"
            raise ValueError(f"iterations must be more than {1 + TIMED}, not {iterations}: {said}")
        return self.tuning.check_room(iterations)

    def look(self, name: str) -> None:
        """An iteration of a schedule is over."""
        if name not in self.waiting:
            self.tuning.note(name)
            return
        fabric = self.session.fabric
        self.waiting[name].append(pass_s(fabric.log.last, fabric.seconds, len(self.session.uses)))
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
        if self.by_time is not None:
            layout, wanted = session.layout, session.schedules[name].collectives
            prices = session.prices.of(wanted)
            cost = whole_cost(wanted, session.route, layout, lambda probe: prices)
            found: list[str] = []

            def choose() -> dict[str, Any]:  # a user's function may fail on one rank alone
                found.append(by_time(self.by_time or "", layout, PassTimes(forward_s, backward_s), cost))
                return {"fusion": found[0]}

            agree(session.world.transport, session.name, choose)
            session.cut(found[0])
            self.waiting.pop(name, None)
        schedule = session.trainers[name].schedule
        if schedule.foresees:
            price = session.prices.of((*schedule.collectives, *schedule.extras))
            options: dict[str, Any] = {"parts": session.options.accumulate, "portions": session.fabric.portions}
            costs = Costs(forward_s=forward_s, backward_s=backward_s, price=price, ranks=session.world.size, **options)
            agree(session.world.transport, session.name, lambda: self.order(name, costs))
            self.prepare_turns()

    def order(self, name: str, costs: Costs) -> dict[str, Any]:
        """Let a schedule order its iteration, and rehearse that; what ranks compare. Not collective."""
        session = self.session
        schedule, kind = session.trainers[name].schedule, session.schedules[name]
        rules = session.rules(name, session.buckets)
        rules.point = ("ordered", ())
        order = in_time(rules, lambda: best_order(schedule, kind, rules, costs))

        class Ordered(kind):  # type: ignore[misc, valid-type]
            def __init__(self, fabric: Fabric) -> None:
                super().__init__(fabric)
                self.order = order

        uses, parts = len(session.layout.uses), session.options.accumulate
        rehearse(Ordered, session.rules(name, session.buckets), uses, accumulate=parts)
        self.orders[name, session.buckets] = schedule.order = order
        return {f"the order of {name}": sha256(repr(order).encode()).hexdigest()}
