"""What a rank sends in an iteration, by the programs of the plans."""

from __future__ import annotations

from collections.abc import Iterable

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.network import Network
from dear_mpi.training.costs.plan_cost import all_plans, plan_costs
from dear_mpi.training.fabric.live import LiveFabric


def traffic(fabric: LiveFabric, collectives: Iterable[str]) -> tuple[int, int] | None:
    """Messages and bytes of the rank that sends most, for all buckets; None where some plan is no program of messages.

    To be called when the plans are prepared; not collective.
    """
    plans = [plan for each in collectives for plan in all_plans(fabric, each)]
    if any(runner_of(plan.algorithm) != "messages" for plan in plans):
        return None
    found = list(plan_costs(plans, Network()))
    messages, nbytes = (zip(*sent, strict=True) for sent in zip(*((c.messages, c.nbytes) for c in found), strict=True))
    return max(map(sum, messages)), max(map(sum, nbytes))
