"""Random search: a size is drawn for each trial, from any octave as likely as from any other. What others must beat."""

from collections.abc import Sequence

import numpy as np

from dear_mpi.training.tuning.nearest import nearest
from dear_mpi.training.tuning.tuner import Tuner


class RandomSearch(Tuner):
    """Tries the untried size that is nearest to one drawn.

    >>> tuner = RandomSearch([1, 2, 4, 8, 16], start=4, most=3, seed=1)
    >>> tuner.tell(4, 0.5)
    >>> tuner.suggest() == tuner.suggest() != 4
    True
    """

    def propose(self, untried: Sequence[int]) -> int:
        low, high = np.log(self.sizes[0]), np.log(self.sizes[-1])
        drawn = np.random.default_rng([self.seed, len(self.trials)]).uniform(low, high)
        return nearest(untried, float(np.exp(drawn)))
