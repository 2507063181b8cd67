"""Check options before the first pass, by a dry run on layers as the model's modules have them.

The first pass decides the order of layer calls; until then it is the order of the model's modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dear_mpi.ranks.streams import host_streams
from dear_mpi.ranks.world import World
from dear_mpi.torch.run import Call
from dear_mpi.torch.sums import EARLY
from dear_mpi.torch.tensors import TorchParameter
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.fusion.decisions import Decisions
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.options import Options
from dear_mpi.training.schedules import find_schedules
from dear_mpi.training.virtual_trainer import VirtualTrainer

if TYPE_CHECKING:
    from dear_mpi.torch.optimizer import DistributedOptimizer


class Sharded(VirtualTrainer):
    """Try a schedule with sharded updates, whose hyperparameters come with ``step()``, not earlier."""

    def end_backward(self) -> None:
        if self.rules.all_started:
            raise ValueError(f"schedule {self.rules.name!r} {EARLY}: take dear, or update='full'")
        super().end_backward()


def check_options(owner: DistributedOptimizer, options: dict[str, Any]) -> None:
    """Check that options fit each other and the model's parameters. Raises ValueError."""
    calls: list[Any] = []
    left = dict(owner.names)
    for module in owner.model.modules():
        if found := [each for each in module.parameters(recurse=False) if left.pop(each, None)]:
            calls.append(call := Call(len(calls)))
            call.parameters += [  # their memory is not touched
                TorchParameter(owner.names[each], torch.empty_like(each, device="cpu"), call) for each in found
            ]
    chosen = Options.of(options | {"optimizer": owner.updates})
    group = WorkerGroup(calls, World(owner.world), chosen, find_schedules([chosen.schedule]), host_streams())
    buckets = Decisions(group, "").planned(chosen.fusion).buckets
    if group.route.update.shard:
        nothing = [0.0] * len(calls)
        rules = group.rules(chosen.schedule, buckets)
        costs = Costs(forward_s=nothing, backward_s=nothing, weights_s={})
        Sharded(group.schedules[chosen.schedule], rules, costs).one()
