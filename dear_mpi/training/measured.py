"""What an iteration of a group costs, as it was measured: for ``--fusion auto``, and the predictions of ``compare``."""

from dataclasses import replace

from dear_mpi.training.costs.plan_cost import WirePrices, plan_s
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.profiles.profile import Profile


def measured_costs(group: WorkerGroup, profile: Profile, *, timed: bool = False) -> Costs:
    """Collective: layers, updates and the rest from a profile of this group; and what collectives cost alone.

    To be called while nothing is under way, because it overwrites gradients.

    Args:
        timed: time collectives on an emulated link, too: with what hosts add to it.
    """
    schedule = group.schedules[profile.schedule]
    prices = WirePrices(group.fabric, timed=True) if timed else group.prices
    loss_s = plan_s(group.fabric, group.meter.plan, timed=timed)
    return replace(
        profile.costs(),
        price=prices.of((*schedule.collectives, *schedule.extras)),
        loss_s=loss_s,
        verdict_s=loss_s,
        ranks=group.world.size,
        portions=group.fabric.portions,
    )
