"""How fast the ranks are, measured in the first iterations of a session, where its weights are to be ``measured``.

    iteration   1 (not timed) | 2 | 3 | flush, compare speeds, share out anew | 4 ...

All ranks decide from the same figures, and compare what they decided. What follows has these weights for good.
"""

from __future__ import annotations

import numpy as np

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.weights import MEASURED, measured
from dear_mpi.training.log.log import pass_s

TIMED = 2  # iterations, after the first one


class Weighing:
    """Collective: looks on as the first iterations of a session pass.

    Attributes:
        over: whether nothing is to be measured any more.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self.group, self.over = group, group.options.weights != MEASURED
        self.own_s: list[float] = []

    @property
    def needs(self) -> int:
        """Iterations until it is over, from the first one on."""
        return 0 if self.over else 1 + TIMED

    def look(self, name: str) -> None:
        """An iteration of a schedule is over; after enough of them, the line is shared out anew."""
        group = self.group
        passes = pass_s(group.fabric.log.last, group.fabric.seconds, len(group.uses))
        self.own_s.append(float(passes.sum()))
        if len(self.own_s) > TIMED:
            self.decide(float(np.mean(self.own_s[1:])), group.trainers[name].examples)

    def decide(self, own_s: float, examples: int) -> None:
        """Share out by what each rank has taken for so many examples; afterwards nothing is under way."""
        transport = self.group.world.transport
        self.group.flush()
        weights = measured(*zip(*transport.gather_values((own_s, examples)), strict=True))
        agree(transport, "weights", lambda: {"weights": weights})
        self.group.share_out(weights)
        self.over = True
