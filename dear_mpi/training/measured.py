"""What an iteration of a group costs, as it was measured: for ``--fusion auto``, and the predictions of ``compare``."""

from dear_mpi.training.fabric.costs import Costs, Price
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.profiles.profile import Profile


def measured_costs(group: WorkerGroup, profile: Profile, price: Price, loss_s: float) -> Costs:
    """Layers, updates and the rest from a profile of this group; collectives at this price."""
    parts = profile.accumulate
    return Costs(
        forward_s=[use.forward_s / parts for use in profile.uses],
        backward_s=[use.backward_s / parts for use in profile.uses],
        price=price,
        parts=parts,
        loss_s=loss_s,
        verdict_s=loss_s,
        update_s=profile.update_s_per_element,
        rest_s=profile.rest_s,
        ranks=group.world.size,
        portions=group.fabric.portions,
    )
