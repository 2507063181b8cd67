"""The early end of a round: where parameters are looked at, all ranks must have the same values."""

from typing import Any

from dear_mpi.collectives import make_plan
from dear_mpi.training.fabric.live import LiveFabric


def settle(fabric: LiveFabric) -> None:
    """Collective, after a flush: end the round here, if one is under way; all ranks get the average of their values.

    What is under way is used first. An outer optimiser has no part in it: it would go on by its momentum.
    """
    arena, route = fabric.arena, fabric.route
    at_end = fabric.iteration % route.period == 0 and not route.lags
    if route.period == 1 or fabric.iteration <= route.begin or at_end or fabric.settled == fabric.iteration:
        return
    fabric.settled = fabric.iteration  # of equal values the average may have other bits
    for bucket, handle in fabric.late.items():
        fabric.wait_for(handle)
        for leg in route.last:
            if leg.after:
                fabric.carry_out(leg, bucket, 1.0)
    fabric.late.clear()
    how: dict[str, Any] = {"algorithm": "auto", "op": "average", "alike": True}
    with make_plan("all_reduce", arena.values, fabric.world.transport, **how) as plan:
        plan()
    arena.begin_lines()
    fabric.kept.clear()
    for bound in fabric.bound.values():
        bound.unpack()
