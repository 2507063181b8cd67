"""Search for the bucket size with the shortest iteration: ask for a size, tell its time, repeat.

The search knows neither models nor networks. It never repeats a size, and its proposals depend only on its seed and its
trials. A method proposes the next trial:

bayesian    A Gaussian process estimates the time of sizes between the trials, and its uncertainty.

    seconds |  x .                        x  trials; between them the guess, in a band that widens with the distance
            |     ' .x_  _ - '            next trial: where the expected improvement over the best one is largest
            +---------------------- log2 of the size

random      A size is drawn, equally likely from any octave: the baseline for other methods.
grid        Sizes equally spaced in octaves, from small to large, after the first trial.

The variable is the logarithm of the size: much changes from 1 to 2 MB, nothing from 201 to 202 MB. Seconds are relative
to the first trial, so that the search is equal on fast and slow networks.

``XI``, also relative, is the least promised improvement over the best size that counts as a gain. DeAR's published code
uses 0.1 seconds. For an iteration of 0.3 s that is a third, which no size can promise, so the search only explores; for
one of 10 s it is a hundredth.

The process follows the package bayesian-optimization, with its kernel (Matern 5/2) and one more bound: times change
over octaves. Without the bound, the first steep slope is taken for noise from size to size. The expected improvement is
then equal everywhere, and trials creep up from the smallest size. The package searches all real sizes and may repeat
one. Here only a few sizes differ, and all are computed.

Source: Jones, Schonlau, Welch, Efficient global optimization, 1998; Zhang et al., DeAR, ICDCS 2023, section IV.

Sizes with the same cut get a single trial: a bucket takes whole layers, so most neighbouring sizes are equal. Sizes are
also text, which you can type:

    size      1MB    1.05MB  1.09MB   1.14MB ...                   200MB   256MB
    buckets   65 ------------------|  63 ---| ...                  |-- 1 -------|      a trial each, not eight
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log2

import numpy as np

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.fusion import USUAL, borders
from dear_mpi.training.line.layout import Layout

TRIALS = 10  # as in DeAR's published code
XI = 0.005  # of the first trial's time
NOISE = 1e-3  # variance of a trial's time, as a share of all trials' variance: the estimate may miss trials
OCTAVES = (1.0, 16.0)  # over which times may change


@dataclass(frozen=True)
class Trial:
    fusion: str
    seconds: float  # of an iteration


class Search:
    """Search for the size with the shortest iteration, in at most ``TRIALS`` trials.

    Args:
        sizes: the candidates in bytes, ascending; see ``distinct_sizes``.
        start: the first size to try.
        method: one of ``METHODS``.
        seed: of the random draws.

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
        """Return the next size to try, or the best one when the search is over."""
        if not self.trials:
            return self.start
        return self.best.fusion if self.over else self.method(self)

    def tell(self, fusion: str, seconds: float) -> None:
        """Record the seconds of an iteration with the size that ``ask`` returned."""
        self.trials.append(Trial(fusion, seconds))

    @property
    def untried(self) -> dict[str, float]:
        """Return the octaves of the sizes without a trial."""
        tried = {trial.fusion for trial in self.trials}
        return {fusion: octave for fusion, octave in self.octaves.items() if fusion not in tried}

    @property
    def ends(self) -> tuple[float, float]:
        return min(self.octaves.values()), max(self.octaves.values())

    @property
    def best(self) -> Trial:
        """Return the size with the shortest iteration so far; the earliest of equal ones."""
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def over(self) -> bool:
        return len(self.trials) >= self.most


def bayesian(search: Search) -> str:
    """Return the size with the largest expected improvement."""
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
    """Return the untried size nearest to a random one."""
    return nearest(search.untried, np.random.default_rng([search.seed, len(search.trials)]).uniform(*search.ends))


def grid(search: Search) -> str:
    """Return the untried size nearest to the next grid point."""
    (low, high), share = search.ends, (len(search.trials) - 1) / max(1, search.most - 2)
    return nearest(search.untried, low + (high - low) * share)


def nearest(octaves: Mapping[str, float], wanted: float) -> str:
    return min(octaves, key=lambda fusion: abs(octaves[fusion] - wanted))


METHODS: Mapping[str, Callable[[Search], str]] = {"bayesian": bayesian, "random": random, "grid": grid}


START = parse_bytes(USUAL)
PER_OCTAVE = 32
UNITS = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
DIGITS = 3


def first_size(low: int, high: int) -> int:
    """Return the first size to try: 25 MB, or the middle of a range that excludes it."""
    return START if low <= START <= high else min(max(readable(round((low * high) ** 0.5)), low), high)


def distinct_sizes(layout: Layout, low: int, high: int, *, per_octave: int = PER_OCTAVE) -> list[int]:
    """Return sizes in bytes from low to high, ascending, with different cuts.

    Sizes with the same cut are represented by the first size to try, otherwise by the middle one.

    Args:
        per_octave: sizes examined from each power of two to the next.

    >>> layout = Layout.of([[("a", (64,))], [("b", (64,))], [("c", (64,))]], itemsize=4, ranks=1)
    >>> distinct_sizes(layout, 200, 1000), first_size(200, 1000)
    ([447, 624, 879], 447)
    """
    start = first_size(low, high)
    steps = max(1, math.ceil(per_octave * math.log2(high / low)))
    spread = {readable(round(low * (high / low) ** (step / steps))) for step in range(steps + 1)}
    sizes = sorted({low, start, high} | {size for size in spread if low < size < high})
    groups = [list(group) for _, group in groupby(sizes, lambda size: cut_by(layout, size))]
    return [start if start in group else group[(len(group) - 1) // 2] for group in groups]


def cut_by(layout: Layout, size: int) -> tuple[int, ...]:
    """Return where buckets of this size begin, in elements of the flat buffer."""
    return tuple(layout.point(border) for border in borders(size_text(size), layout))


def readable(nbytes: int) -> int:
    """Return the nearest size that three digits can express.

    >>> readable(39_000_000)
    39007027
    """
    unit = next((unit for unit, factor in UNITS.items() if nbytes >= factor), None)
    if unit is None:
        return nbytes
    value = nbytes / UNITS[unit]
    return parse_bytes(f"{value:.{max(0, DIGITS - len(str(int(value))))}f}{unit}")


def size_text(nbytes: int) -> str:
    """Return the shortest text that ``parse_bytes`` reads as this size.

    >>> size_text(26214400), size_text(39007027), size_text(1537)
    ('25MB', '37.2MB', '1537B')
    """
    for unit, factor in UNITS.items():
        for digits in range(DIGITS):
            text = f"{nbytes / factor:.{digits}f}{unit}"
            if nbytes >= factor and parse_bytes(text) == nbytes:
                return text
    return f"{nbytes}B"
