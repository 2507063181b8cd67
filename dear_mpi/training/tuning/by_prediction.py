"""``--fusion auto``: the virtual fabric tries many buckets with the times of this run, and one cut follows.

    iteration   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
                  first fill  timed

It costs seconds instead of iterations, and tries ``cut:SIZE``, too. It is as good as its prediction: compute and
communication that slow each other down, and the verdict on gradients (``--clip``), are not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dear_mpi.training.costs.plan_cost import plan_s
from dear_mpi.training.costs.wire_prices import WirePrices
from dear_mpi.training.profiles.profiler import WARM, Profiler
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.tuning.sizes import START, size_text
from dear_mpi.training.tuning.tuning import Tuning, said_by_rank_0
from dear_mpi.training.tuning.virtual_run import VirtualRun, candidates
from dear_mpi.training.virtual_trainer import Costs

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

AUTO = "auto"
TIMED = 3  # iterations


class ByPrediction(Tuning):
    """Cuts once, as the prediction says. A session that its user cuts is tuned no more.

    Args:
        before: as for ``ByTrials``.

    Raises:
        ValueError: the policy is more than ``auto``.
    """

    def __init__(self, session: Session, policy: str, *, before: int) -> None:
        if policy != AUTO:
            raise ValueError(f"fusion {policy!r}: auto takes nothing after a colon")
        super().__init__(size_text(START))
        self.session, self.over = session, False
        foresees = any(schedule.foresees for schedule in session.schedules.values())
        self.needs = 1 + WARM + TIMED + 2 * before * foresees  # an order for the first buckets, and one for the last
        self.profiler: Profiler | None = None

    def note(self, name: str) -> None:
        if not self.is_for(name):
            return
        if self.session.options.fusion != AUTO:
            self.over = True
        elif self.profiler is None:
            self.profiler = Profiler(self.session, name)
        else:
            self.profiler.note()
            if self.profiler.noted == WARM + TIMED:
                self.decide(self.profiler, self.session.schedules[name])

    def decide(self, profiler: Profiler, schedule: type[Schedule]) -> None:
        """Predict on rank 0, and cut."""
        session = self.session
        session.flush()
        run, transport = self.run_of(profiler, schedule), session.world.transport
        fusions = candidates(session.layout)
        self.trials = said_by_rank_0(transport, "tuning", lambda: run.tried(fusions))
        self.fusion, self.over = said_by_rank_0(transport, "tuning", lambda: run.choice(self.trials)), True
        session.cut(self.fusion)

    def run_of(self, profiler: Profiler, schedule: type[Schedule]) -> VirtualRun:
        """Collective: what was measured."""
        session, profile = self.session, profiler.profile("auto")
        prices = WirePrices(session.fabric, timed=True)  # with what hosts add to a link
        price, parts = prices.of((*schedule.collectives, *schedule.extras)), session.options.accumulate
        forward_s = [use.forward_s / parts for use in profile.uses]
        backward_s = [use.backward_s / parts for use in profile.uses]
        loss_s = plan_s(session.fabric, session.meter.plan, timed=True)
        return VirtualRun(
            layout=session.layout,
            schedule=schedule,
            route=session.route,
            judged=session.options.judged,
            costs=Costs(
                forward_s=forward_s,
                backward_s=backward_s,
                price=price,
                parts=parts,
                loss_s=loss_s,
                verdict_s=loss_s,
                update_s=profile.update_s_per_element,
                rest_s=profile.rest_s,
                ranks=session.world.size,
                portions=session.fabric.portions,
            ),
        )
