"""The loss of the whole job."""

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.order import LOSS, SUMS

HALF = 1 << 20  # totals are compared in two halves: squares of small numbers are exact
GIVE = "where ranks have unequal parts, give total="


class LossMeter:
    """Sums the ranks' losses and numbers of targets, hidden under the backward pass: started before it, read after it.

    Constructing is collective. ``slab`` is memory where the model is: a GPU's host does not wait for the loss.
    """

    def __init__(self, fabric: LiveFabric, slab: Slab) -> None:
        self.fabric, self.value = fabric, slab.zeros(7, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.value, fabric.world.transport, algorithm="auto", slab=slab)
        self.plan.noted(SUMS[LOSS], fabric.log.notes)

    def start(self, loss: Array | float, targets: int, total: int, *, trouble: bool) -> None:
        self.value[0] = loss
        self.value[0] *= 1 / max(1, total)
        high, low = divmod(total, HALF)
        for place, number in enumerate((targets, high, high**2, low, low**2, trouble), start=1):
            self.value[place] = number
        self.handle = self.fabric.launch_sum(LOSS, self.plan)

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        return float(self.value[0])

    @property
    def trouble(self) -> bool:
        return bool(self.value[6] > 0)

    def complaint(self) -> str | None:
        targets, high, high_squares, low, low_squares = map(round, self.value[1:6].tolist())
        size, totals = self.fabric.world.size, high * HALF + low
        if (high**2, low**2) != (size * high_squares, size * low_squares):  # of numbers that are all equal, they are
            return f"ranks expect different numbers of targets in the whole batch, {totals / size:g} on average: {GIVE}"
        if targets * size != totals:
            return f"the whole batch has {targets} targets, not {totals // size} as expected: {GIVE}"
        return None

    def free(self) -> None:
        self.plan.free()
