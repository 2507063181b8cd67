"""Grid search: sizes that are equally far apart on a scale of octaves, from small to large, after the first trial."""

from collections.abc import Sequence

from dear_mpi.training.tuning.nearest import nearest
from dear_mpi.training.tuning.tuner import Tuner


class GridSearch(Tuner):
    """Tries the untried size that is nearest to each point of the grid.

    >>> tuner = GridSearch([1, 2, 4, 8, 16], start=4, most=4)
    >>> while not tuner.over:
    ...     tuner.tell(tuner.suggest(), 0.5)
    >>> [trial.nbytes for trial in tuner.trials]
    [4, 1, 2, 16]
    """

    def propose(self, untried: Sequence[int]) -> int:
        low, high = self.sizes[0], self.sizes[-1]
        share = (len(self.trials) - 1) / max(1, self.most - 2)
        return nearest(untried, low * (high / low) ** min(1.0, share))
