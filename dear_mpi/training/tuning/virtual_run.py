"""What an iteration would take with other buckets: the trainer and its schedule, on the virtual fabric."""

from __future__ import annotations

from dataclasses import dataclass

from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.virtual_trainer import Costs, VirtualTrainer


@dataclass(frozen=True, kw_only=True)
class VirtualRun:
    """A model with its schedule.

    Attributes:
        judged: whether all gradients are looked at before any of them is used.
    """

    layout: Layout
    schedule: type[Schedule]
    costs: Costs
    route: Route = FULL
    judged: bool = False

    def seconds(self, fusion: str) -> float:
        """Seconds of an iteration, when the pipeline is full.

        Raises:
            ValueError: the policy cannot be read, or the schedule breaks a rule.
        """
        buckets, schedule = fused(fusion, self.layout), self.schedule
        rules = Rules(schedule.__name__, buckets, schedule, judged=self.judged, route=self.route)
        return VirtualTrainer(schedule, rules, self.costs).mean_s()
