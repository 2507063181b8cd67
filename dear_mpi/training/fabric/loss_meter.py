"""The loss of the whole job."""

import math
import warnings

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.order import LOSS, SUMS

DOUBTS = 3  # after this many first iterations, totals that seem to count one rank's targets are no coincidence
HALF = 1 << 20  # totals are compared in two halves: squares of small numbers are exact
GIVE = "if ranks have unequal parts, or some targets do not count, give total=, the same on all ranks"


class LossMeter:
    """Sums the ranks' losses and numbers of targets, hidden under the backward pass: started before it, read after it.

    Constructing is collective. ``slab`` is memory where the model is: a GPU's host does not wait for the loss.
    """

    def __init__(self, fabric: LiveFabric, slab: Slab) -> None:
        self.fabric, self.value = fabric, slab.zeros(8, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.value, fabric.world.transport, algorithm="auto", slab=slab)
        self.plan.noted(SUMS[LOSS], fabric.log.notes)
        self.doubts: float = 0

    def start(self, loss: Array | float, targets: Array, total: int, *, trouble: bool) -> None:
        self.value[0] = loss
        self.value[0] *= 1 / max(1, total)
        high, low = divmod(total, HALF)
        own = (
            0 <= self.doubts < DOUBTS
            and 0 < total == targets.size
            and not (
                targets.dtype.kind == "i" and bool((targets < 0).any())  # marked to be ignored
            )
        )
        for place, number in enumerate((targets.size, high, high**2, low, low**2, own, trouble), start=1):
            self.value[place] = number
        self.handle = self.fabric.launch_sum(LOSS, self.plan)

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        size = self.fabric.world.size
        self.doubts += 1 if round(float(self.value[6])) == size > 1 else -math.inf
        if self.doubts == DOUBTS and self.fabric.world.rank == 0:
            advice = f"count all {size} ranks, or leave it out if all targets count"
            warnings.warn(f"total= seems to count the targets of one rank: {advice}", stacklevel=2)
        return float(self.value[0])

    @property
    def trouble(self) -> bool:
        return bool(self.value[7] > 0)

    def complaint(self) -> str | None:
        targets, high, high_squares, low, low_squares = map(round, self.value[1:6].tolist())
        size, totals = self.fabric.world.size, high * HALF + low
        if (high**2, low**2) != (size * high_squares, size * low_squares):  # of numbers that are all equal, they are
            return f"ranks expect different numbers of targets in the whole batch, {totals / size:g} on average: {GIVE}"
        if totals > targets * size:
            return f"total must be at most {targets}, the targets of all ranks, not {totals // size}: {GIVE}"
        if totals == 0 != self.value[0]:
            return f"total must not be 0, because the loss is not: {float(self.value[0]):g}"
        return None

    def free(self) -> None:
        self.plan.free()
