"""What an iteration of a group costs, as it was measured: for ``--fusion auto``, and the predictions of ``compare``."""

from dataclasses import replace

from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.profiles.profile import Profile
from dear_mpi.training.virtual_trainer import Costs


def measured_costs(group: WorkerGroup, profile: Profile, price: Price, loss_s: float) -> Costs:
    """Layers, updates and the rest from a profile of this group; collectives at this price."""
    size, portions = group.world.size, group.fabric.portions
    return replace(profile.costs(), price=price, loss_s=loss_s, verdict_s=loss_s, ranks=size, portions=portions)
