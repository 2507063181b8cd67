"""The loss of the whole job."""

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.live import LOSS, LiveFabric

__all__ = ["LossMeter"]


class LossMeter:
    """Sums the ranks' losses and numbers of targets, hidden under the backward pass: started before it, read after it.

    Constructing is collective. ``slab`` is memory where the model is: a GPU's host does not wait for the loss.
    """

    def __init__(self, fabric: LiveFabric, slab: Slab) -> None:
        self.fabric, self.value = fabric, slab.zeros(2, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.value, fabric.world.transport, algorithm="auto", slab=slab)
        self.plan.name = "all_reduce of the loss"

    def start(self, loss: Array | float, scale: float, targets: int) -> None:
        self.value[0] = loss
        self.value[0] *= scale
        self.value[1] = targets
        self.handle = self.fabric.engine.start(self.plan, self.plan.name, LOSS)

    def read(self) -> float:
        self.fabric.wait(self.handle)
        return float(self.value[0])

    @property
    def targets(self) -> int:
        """The number of targets in the last batch, of all ranks together."""
        return round(float(self.value[1]))

    def free(self) -> None:
        self.plan.free()
