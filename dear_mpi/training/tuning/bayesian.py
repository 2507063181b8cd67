"""Bayesian optimisation: a Gaussian process guesses what sizes between the trials take, and how sure that is.

    seconds |  x .                        x  trials; between them the guess, in a band that widens with the distance
            |     ' .x_  _ - '            next trial: where the expected improvement over the best one is largest
            +---------------------- log2 of the size

The variable is the logarithm of the size: from 1 to 2 MB much changes, from 201 to 202 MB nothing does. Seconds are
divided by the first trial's, so that nothing here depends on how long an iteration is.

``XI`` is by how much a size must promise to be better than the best one for that to count as a gain. In DeAR's
published code it is 0.1 in the unit of the target, which there is seconds. For an iteration of 0.3 s that is a third,
which no size can promise: the search then always looks where it knows least. For one of 10 s it is a hundredth. Here it
is a share of the first trial's time: the same search on a fast network and on a slow one.

The process is as in the package bayesian-optimization, with its kernel (Matern 5/2) and one more bound: times change
over octaves. Without this bound, the first steep slope is taken for noise from size to size, about which nothing can be
known: then the expected improvement is the same everywhere, and trials creep along from the smallest size. The package
looks among all real sizes, and may come back to one it has seen. Here only a few sizes differ, and all are computed.

Source: Jones, Schonlau, Welch, Efficient global optimization, 1998; Zhang et al., DeAR, ICDCS 2023, section IV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dear_mpi.training.tuning.tuner import Tuner

XI = 0.005  # of the first trial's time
NOISE = 1e-3  # variance of a trial's time, as a share of all trials' variance: the guess need not go through each
OCTAVES = (1.0, 16.0)  # over which times may change


class Bayesian(Tuner):
    """Tries where the expected improvement is largest.

    Raises:
        ValueError: as for ``Tuner``, or the package is missing.
    """

    def __init__(self, sizes: Sequence[int], **options: Any) -> None:
        super().__init__(sizes, **options)
        try:
            import bayes_opt  # noqa: F401
        except ImportError:
            what = "Bayesian tuning needs bayesian-optimization: pip install bayesian-optimization (our extra 'tune')"
            raise ValueError(f"{what}, or take bo:random or bo:grid") from None

    def propose(self, untried: Sequence[int]) -> int:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import ExpectedImprovement
        from sklearn.gaussian_process.kernels import Matern

        improvement, bounds = ExpectedImprovement(xi=XI), (octave(self.sizes[0]), octave(self.sizes[-1]))
        process = BayesianOptimization(None, {"octave": bounds}, improvement, random_state=self.seed, verbose=0)
        kernel = Matern(length_scale=OCTAVES[0], length_scale_bounds=OCTAVES, nu=2.5)
        process.set_gp_params(alpha=NOISE, kernel=kernel)
        targets = {size: -seconds / self.trials[0].seconds for size, seconds in self.means.items()}
        for size, target in targets.items():
            process.register({"octave": octave(size)}, target)
        improvement.y_max = max(targets.values())
        mean, deviation = process.predict([{"octave": octave(size)} for size in untried], return_std=True)
        return untried[int(np.argmax(improvement.base_acq(mean, deviation)))]


def octave(nbytes: int) -> float:
    """The logarithm of a size."""
    return math.log2(nbytes)
