"""What an iteration of a group costs, as it was measured: for ``--fusion auto``, and the predictions of ``compare``."""

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
    schedule, parts = group.schedules[profile.schedule], profile.accumulate
    prices = WirePrices(group.fabric, timed=True) if timed else group.prices
    loss_s = plan_s(group.fabric, group.meter.plan, timed=timed)
    return Costs(
        forward_s=[use.forward_s / parts for use in profile.uses],
        backward_s=[use.backward_s / parts for use in profile.uses],
        price=prices.of((*schedule.collectives, *schedule.extras)),
        parts=parts,
        loss_s=loss_s,
        verdict_s=loss_s,
        update_s=profile.update_s_per_element,
        rest_s=profile.rest_s,
        ranks=group.world.size,
        portions=group.fabric.portions,
    )
