"""What the network needs for an iteration: with it, ``Schedule.bound`` gives the least time that a schedule allows.

Where bp = 2 ff and rs = ag = ar / 2, the bounds of DeAR and WFBP are equal while ar <= 2 ff, and at most 1.25 apart,
where ar = 4 ff. If bp = 2 ff in total, but not layer by layer, a fair WFBP can miss its bound by more than DeAR does,
and lose by up to 4/3.
"""

from collections.abc import Iterable

from dear_mpi.training.costs.plan_cost import all_plans, best_s, emulated_network, plan_costs
from dear_mpi.training.fabric.live import LiveFabric

REPEATS = 3


def communication(fabric: LiveFabric, collectives: Iterable[str]) -> dict[str, float]:
    """Collective: seconds of each of these collectives, for all buckets one after the other, with no compute beside.

    On an emulated link the cost model says it. There steps do not overlap: that is right for the ring, and pessimistic
    if many ranks send to one. On a real network it is measured, the best of three. Call this while nothing is under
    way, because it leaves nothing but zeros in gradients.
    """
    times = modelled if fabric.world.link is not None else measured
    return {collective: times(fabric, collective) for collective in collectives}


def modelled(fabric: LiveFabric, collective: str) -> float:
    """By the cost model, on the emulated link."""
    fabric.prepare([collective])
    network = emulated_network(fabric.world)
    return sum(each.time_s for each in plan_costs(all_plans(fabric, collective), network))


def measured(fabric: LiveFabric, collective: str) -> float:
    """The best of a few runs of all buckets."""
    fabric.prepare([collective])
    fabric.follow(None)

    def run() -> None:
        for handle in [fabric.engine.start(plan, plan.name) for plan in all_plans(fabric, collective)]:
            handle.wait()

    values = fabric.arena.values.copy()
    found_s = best_s(fabric, run, REPEATS)
    fabric.arena.values[...] = values
    fabric.arena.wire.view("u1")[...] = 0
    return found_s
