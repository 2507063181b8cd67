"""Tune a session's fusion while it trains, as ``--fusion bo`` or ``auto`` asks for.

    bo     | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
            fill    timed: the median of what the slowest rank took

    auto   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
             first fill  timed

Decisions depend on clocks, which differ between ranks, so rank 0 decides for all.

``bo`` searches for the bucket size with the shortest iteration. A Gaussian process estimates the time of sizes between
the trials, and its uncertainty; the next trial has the largest expected improvement over the best one. The variable is
the logarithm of the size. Seconds are relative to the first trial, so that the search is equal on fast and slow
networks. ``XI``, also relative, is the least improvement that counts. DeAR's published code uses 0.1 s: a third of an
iteration of 0.3 s, which no size can promise. The kernel (Matern 5/2) is bayesian-optimization's, with one more bound:
times change over octaves. Without it, the first steep slope is taken for noise, and trials creep up from the smallest
size.

Source: Jones, Schonlau, Welch, Efficient global optimization, 1998; Zhang et al., DeAR, ICDCS 2023, section IV.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from math import log2
from statistics import median

import numpy as np

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.reporting.units import parse_bytes, plural
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.events.profiler import WARM, Profiler
from dear_mpi.training.fusion import USUAL, Trial, Tuning, borders, fused
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.virtual_trainer import predict

TRIALS = 10  # as in DeAR's published code
XI = 0.005  # of the first trial's time
NOISE = 1e-3  # variance of a trial's time, as a share of all trials' variance: the estimate may miss trials
OCTAVES = (1.0, 16.0)  # over which times may change

LOW, HIGH, MANY = 1 << 20, 256 << 20, 64  # bytes, as in DeAR's published code; MANY: buckets of small models
FILL, TIMED = 2, 3  # iterations
TOLD_APART = 0.02  # predictions that differ by less are equal
SIZES_PER_OCTAVE, CUTS_PER_OCTAVE, LEAST_CUT, MOST_CUT = 8, 2, 1 << 18, 1 << 25
MOST_TRIED = 10_000  # more buckets take rank 0 too long

START = parse_bytes(USUAL)
PER_OCTAVE = 32
UNITS = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
DIGITS = 3


class Search:
    """Ask for a size, tell its time, repeat. It never repeats a size, and depends only on its trials.

    >>> search = Search([1024, 2048], start=2048)
    >>> while not search.over:
    ...     search.tell(search.ask(), 0.5)
    >>> [trial.fusion for trial in search.trials], search.best.fusion
    (['2KB', '1KB'], '2KB')
    """

    def __init__(self, sizes: Sequence[int], *, start: int) -> None:
        self.octaves = {size_text(size): log2(size) for size in sizes}
        self.start, self.most = size_text(start), min(TRIALS, len(sizes))
        self.trials: list[Trial] = []

    def ask(self) -> str:
        if not self.trials:
            return self.start
        return self.best.fusion if self.over else self.promising()

    def tell(self, fusion: str, seconds: float) -> None:
        """Record the seconds of an iteration with the size that ``ask`` returned."""
        self.trials.append(Trial(fusion, seconds))

    @property
    def best(self) -> Trial:
        """Return the size with the shortest iteration so far; the earliest of equal ones."""
        return min(self.trials, key=lambda trial: trial.seconds)

    @property
    def over(self) -> bool:
        return len(self.trials) >= self.most

    def promising(self) -> str:
        """Return the untried size with the largest expected improvement."""
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import ExpectedImprovement
        from sklearn.gaussian_process.kernels import Matern

        ends, first_s = (min(self.octaves.values()), max(self.octaves.values())), self.trials[0].seconds
        improvement = ExpectedImprovement(xi=XI)
        process = BayesianOptimization(None, {"octave": ends}, improvement, random_state=0, verbose=0)
        kernel = Matern(length_scale=OCTAVES[0], length_scale_bounds=OCTAVES, nu=2.5)
        process.set_gp_params(alpha=NOISE, kernel=kernel)
        for trial in self.trials:
            process.register({"octave": self.octaves[trial.fusion]}, -trial.seconds / first_s)
        improvement.y_max = -self.best.seconds / first_s
        untried = [fusion for fusion in self.octaves if fusion not in {trial.fusion for trial in self.trials}]
        octaves = [{"octave": self.octaves[fusion]} for fusion in untried]
        mean, deviation = process.predict(octaves, return_std=True)
        return untried[int(np.argmax(improvement.base_acq(mean, deviation)))]


class ByTrials(Tuning):
    """Try sizes with different cuts on iterations of the run, and end with the best one.

    ``before``: iterations from a cut until schedules have decided their order. Raises ValueError if the fusion cannot
    be read, or does not suit the model.
    """

    over = False

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        (low, high), layout = asked(policy), group.layout
        start, sizes = first_size(low, high), distinct_sizes(layout, low, high)
        if len(sizes) < 2:
            alike = plural(len(set(cut_by(layout, start))), "bucket")
            said = f"{size_text(low)} to {size_text(high)} cut this model into the same {alike}"
            whole = size_text(readable(layout.count * layout.itemsize))
            raise ValueError(f"fusion {policy!r}: all sizes from {said}; its parameters have {whole}")
        if group.world.rank == 0:
            try:
                import bayes_opt  # noqa: F401
            except ImportError:
                what = "pip install bayesian-optimization (our extra 'tune'), or take auto"
                raise ValueError(f"Bayesian tuning needs bayesian-optimization: {what}") from None
        self.group, self.search = group, Search(sizes, start=start)
        super().__init__(self.search.ask(), self.search.most * (FILL + TIMED + before))
        self.tried, self.trials = self.fusion, self.search.trials
        self.times_s: list[float] = []

    def look(self, name: str) -> str | None:
        self.times_s.append(self.group.trainers[name].times.iteration_s)
        if len(self.times_s) < FILL + TIMED:
            return None
        self.group.flush()
        transport = self.group.world.transport
        ranks = transport.gather_values(self.times_s[FILL:])
        self.times_s.clear()
        self.search.tell(self.tried, median(max(each) for each in zip(*ranks, strict=True)))
        self.over = self.search.over
        self.tried = said_by_rank_0(transport, "tuning", self.search.ask)
        return self.tried


class ByPrediction(Tuning):
    """Try many buckets on the virtual fabric with the times of this run; then cut once. It also tries ``cut:SIZE``."""

    over = False
    profiler: Profiler | None = None

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        if policy != "auto":
            raise ValueError(f"fusion {policy!r}: auto takes nothing after a colon")
        # an order for the first buckets, and one for the last
        super().__init__(size_text(START), 1 + WARM + TIMED + 2 * before)
        self.group = group

    def look(self, name: str) -> str | None:
        if self.profiler is None:
            self.profiler = Profiler(self.group, name)
            return None
        self.profiler.note()
        if self.profiler.noted < WARM + TIMED:
            return None
        group, layout = self.group, self.group.layout
        group.flush()
        costs = self.profiler.costs(timed=True)

        def predicted(fusion: str) -> Trial:
            return Trial(
                fusion, predict(group.schedules[name], group.rules(name, fused(fusion, layout)), costs).iteration_s
            )

        self.trials = said_by_rank_0(group.world.transport, "tuning", lambda: list(map(predicted, candidates(layout))))
        self.over = True
        return fewest_buckets(self.trials, layout)


def asked(policy: str) -> tuple[int, int]:
    """Return the smallest and the largest size of a search, in bytes.

    >>> asked("bo:1MB..64MB")
    (1048576, 67108864)
    """
    _, colon, sizes = policy.partition(":")
    if not colon:
        return LOW, HIGH
    try:
        low, high = map(parse_bytes, sizes.split("..", 1))
        if not 0 < low < high:
            raise ValueError("the range must go up from at least 1 B")
    except ValueError as error:
        raise ValueError(f"fusion {policy!r}: {error}; write it like bo or bo:1MB..64MB") from None
    return low, high


def fewest_buckets(trials: Sequence[Trial], layout: Layout) -> str:
    """Return the policy with the fewest buckets among those that equal the best one within the tolerance.

    A prediction knows least about the cost of a collective outside its network time.
    """
    limit_s = (1 + TOLD_APART) * min(trial.seconds for trial in trials)
    good = [trial.fusion for trial in trials if trial.seconds <= limit_s]
    return min(good, key=lambda fusion: len(fused(fusion, layout)))


def candidates(layout: Layout) -> list[str]:
    """Return policies worth trying: 25 MB first, sizes with different cuts of this model, and ``cut:SIZE``.

    >>> layout = Layout.of([[("a", (1 << 20,))], [("b", (1 << 20,))]], itemsize=4, ranks=2)
    >>> candidates(layout)[:4]
    ['25MB', '995KB', 'cut:256KB', 'cut:362KB']
    """
    whole = layout.count * layout.itemsize
    low, high = readable(max(1, min(LOW, whole // MANY))), max(START, min(HIGH, whole))
    sizes = distinct_sizes(layout, low, high, per_octave=SIZES_PER_OCTAVE)
    octaves = (MOST_CUT // LEAST_CUT).bit_length() - 1
    cuts = [readable(round(LEAST_CUT * 2 ** (step / CUTS_PER_OCTAVE))) for step in range(octaves * CUTS_PER_OCTAVE + 1)]
    texts = [size_text(START), *(size_text(size) for size in sizes if size != START)]
    return texts + [f"cut:{size_text(size)}" for size in cuts if size < whole <= MOST_TRIED * size]


def first_size(low: int, high: int) -> int:
    """Return the first size to try: 25 MB, or the middle of a range that excludes it."""
    return START if low <= START <= high else min(max(readable(round((low * high) ** 0.5)), low), high)


def distinct_sizes(layout: Layout, low: int, high: int, *, per_octave: int = PER_OCTAVE) -> list[int]:
    """Return sizes in bytes from low to high, ascending, with different cuts.

    Sizes with the same cut are represented by the first size to try, otherwise by the middle one.

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
