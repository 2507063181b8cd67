"""A search for the size of buckets with the shortest iteration: it is asked, told what an iteration took, asked again.

It knows neither models nor networks. It never asks for a size again that was tried, and what it asks for follows from
its seed and its trials alone. A method proposes what is tried next:

bayesian    A Gaussian process guesses what sizes between the trials take, and how sure that is.

    seconds |  x .                        x  trials; between them the guess, in a band that widens with the distance
            |     ' .x_  _ - '            next trial: where the expected improvement over the best one is largest
            +---------------------- log2 of the size

random      A size is drawn, from any octave as likely as from any other. What others must beat.
grid        Sizes that are equally far apart on a scale of octaves, from small to large, after the first trial.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from dear_mpi.training.tuning.sizes import size_text

TRIALS = 10  # as in DeAR's published code
XI = 0.005  # of the first trial's time
NOISE = 1e-3  # variance of a trial's time, as a share of all trials' variance: the guess need not go through each
OCTAVES = (1.0, 16.0)  # over which times may change


@dataclass(frozen=True)
class Trial:
    fusion: str
    seconds: float  # of an iteration


class Search:
    """Looks for the size with the shortest iteration, in at most ``TRIALS`` trials.

    Args:
        sizes: those that may be tried, in bytes, ascending; see ``distinct_sizes``.
        start: the one of them that is tried first.
        method: one of ``METHODS``.
        seed: fixes what is drawn.

    Attributes:
        octaves: the logarithm of each size, by its name as a fusion.

    >>> search = Search([1024, 2048, 4096], start=2048, method="grid")
    >>> while not search.over:
    ...     search.tell(search.ask(), 0.5)
    >>> [trial.fusion for trial in search.trials], search.best.fusion
    (['2KB', '1KB', '4KB'], '2KB')
    """

    def __init__(self, sizes: Sequence[int], *, start: int, method: str = "bayesian", seed: int = 0) -> None:
        self.octaves = {size_text(size): log2(size) for size in sizes}
        self.start, self.method, self.seed = size_text(start), METHODS[method], seed
        self.most = min(TRIALS, len(sizes))
        self.trials: list[Trial] = []

    def ask(self) -> str:
        """The size to try next; when all is over, the best one."""
        if not self.trials:
            return self.start
        return self.best.fusion if self.over else self.method(self)

    def tell(self, fusion: str, seconds: float) -> None:
        """What an iteration took with the size that was asked for."""
        self.trials.append(Trial(fusion, seconds))

    @property
    def untried(self) -> dict[str, float]:
        """The octaves of the sizes without a trial."""
        tried = {trial.fusion for trial in self.trials}
        return {fusion: octave for fusion, octave in self.octaves.items() if fusion not in tried}

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest octave."""
        return min(self.octaves.values()), max(self.octaves.values())

    @property
    def best(self) -> Trial:
        """The size with the shortest iteration so far; of equal ones the first that was tried."""
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def over(self) -> bool:
        return len(self.trials) >= self.most


def bayesian(search: Search) -> str:
    """The size with the largest expected improvement."""
    from bayes_opt import BayesianOptimization
    from bayes_opt.acquisition import ExpectedImprovement
    from sklearn.gaussian_process.kernels import Matern

    improvement = ExpectedImprovement(xi=XI)
    process = BayesianOptimization(None, {"octave": search.ends}, improvement, random_state=search.seed, verbose=0)
    kernel = Matern(length_scale=OCTAVES[0], length_scale_bounds=OCTAVES, nu=2.5)
    process.set_gp_params(alpha=NOISE, kernel=kernel)
    for trial in search.trials:
        process.register({"octave": search.octaves[trial.fusion]}, -trial.seconds / search.trials[0].seconds)
    improvement.y_max = -search.best.seconds / search.trials[0].seconds
    untried = search.untried
    mean, deviation = process.predict([{"octave": octave} for octave in untried.values()], return_std=True)
    return list(untried)[int(np.argmax(improvement.base_acq(mean, deviation)))]


def random(search: Search) -> str:
    """The untried size that is nearest to one drawn."""
    return nearest(search.untried, np.random.default_rng([search.seed, len(search.trials)]).uniform(*search.ends))


def grid(search: Search) -> str:
    """The untried size that is nearest to the next point of the grid."""
    (low, high), share = search.ends, (len(search.trials) - 1) / max(1, search.most - 2)
    return nearest(search.untried, low + (high - low) * share)


def nearest(octaves: Mapping[str, float], wanted: float) -> str:
    return min(octaves, key=lambda fusion: abs(octaves[fusion] - wanted))


METHODS: Mapping[str, Callable[[Search], str]] = {"bayesian": bayesian, "random": random, "grid": grid}
