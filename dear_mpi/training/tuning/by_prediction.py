"""``--fusion auto``: the virtual fabric tries many buckets with the times of this run, and one cut follows.

    iteration   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
                  first fill  timed

It costs seconds instead of iterations, and tries ``cut:SIZE``, too. It is as good as its prediction: compute and
communication that slow each other down, and the verdict on gradients (``--clip``), are not in it.
"""

from __future__ import annotations

from dear_mpi.training.costs.plan_cost import WirePrices, plan_s
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.profiles.profiler import WARM, Profiler
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.tuning.sizes import START, size_text
from dear_mpi.training.tuning.tuning import Tuning, said_by_rank_0
from dear_mpi.training.tuning.virtual_run import VirtualRun, candidates
from dear_mpi.training.virtual_trainer import Costs

AUTO = "auto"
TIMED = 3  # iterations


class ByPrediction(Tuning):
    """Cuts once, as the prediction says. A session that its user cuts is tuned no more.

    Args:
        before: as for ``ByTrials``.

    Raises:
        ValueError: the policy is more than ``auto``.
    """

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        if policy != AUTO:
            raise ValueError(f"fusion {policy!r}: auto takes nothing after a colon")
        super().__init__(size_text(START))
        self.group, self.over = group, False
        foresees = any(schedule.foresees for schedule in group.schedules.values())
        self.needs = 1 + WARM + TIMED + 2 * before * foresees  # an order for the first buckets, and one for the last
        self.profiler: Profiler | None = None

    def note(self, name: str, fusion: str) -> str | None:
        if not self.is_for(name):
            return None
        if fusion != AUTO:
            self.over = True
        elif self.profiler is None:
            self.profiler = Profiler(self.group, name)
        else:
            self.profiler.note()
            if self.profiler.noted == WARM + TIMED:
                return self.decided(self.profiler, self.group.schedules[name])
        return None

    def decided(self, profiler: Profiler, schedule: type[Schedule]) -> str:
        """What rank 0 predicts to be best."""
        self.group.flush()
        run, transport = self.run_of(profiler, schedule), self.group.world.transport
        fusions = candidates(self.group.layout)
        self.trials = said_by_rank_0(transport, "tuning", lambda: run.tried(fusions))
        self.fusion, self.over = said_by_rank_0(transport, "tuning", lambda: run.choice(self.trials)), True
        return self.fusion

    def run_of(self, profiler: Profiler, schedule: type[Schedule]) -> VirtualRun:
        """Collective: what was measured."""
        group, profile = self.group, profiler.profile("auto")
        prices = WirePrices(group.fabric, timed=True)  # with what hosts add to a link
        price, parts = prices.of((*schedule.collectives, *schedule.extras)), group.options.accumulate
        forward_s = [use.forward_s / parts for use in profile.uses]
        backward_s = [use.backward_s / parts for use in profile.uses]
        loss_s = plan_s(group.fabric, group.meter.plan, timed=True)
        return VirtualRun(
            layout=group.layout,
            schedule=schedule,
            route=group.route,
            judged=group.options.judged,
            costs=Costs(
                forward_s=forward_s,
                backward_s=backward_s,
                price=price,
                parts=parts,
                loss_s=loss_s,
                verdict_s=loss_s,
                update_s=profile.update_s_per_element,
                rest_s=profile.rest_s,
                ranks=group.world.size,
                portions=group.fabric.portions,
            ),
        )
