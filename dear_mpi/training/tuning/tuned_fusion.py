"""Tune a session's fusion while it trains, as ``--fusion bo`` or ``auto`` asks for.

    bo     | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
            fill    timed: the median of what the slowest rank took

    auto   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
             first fill  timed

Decisions depend on clocks, which differ between ranks. Rank 0 therefore decides and tells the others. All ranks cut at
the same point between two iterations. After a cut nothing is under way: the first iteration waits for less than later
ones, or produces their input.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_bytes, plural
from dear_mpi.training.fusion import fused
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.profiles.profiler import WARM, Profiler
from dear_mpi.training.tuning.search import (
    METHODS,
    START,
    Search,
    Trial,
    cut_by,
    distinct_sizes,
    first_size,
    readable,
    size_text,
)
from dear_mpi.training.virtual_trainer import predict

LOW, HIGH, MANY = 1 << 20, 256 << 20, 64  # bytes, as in DeAR's published code; MANY: buckets of small models
FILL, TIMED = 2, 3  # iterations

TOLD_APART = 0.02  # predictions that differ by less are equal
PER_OCTAVE, CUTS_PER_OCTAVE, LEAST_CUT, MOST_CUT = 8, 2, 1 << 18, 1 << 25
MOST_TRIED = 10_000  # more buckets take rank 0 too long


class Tuning:
    """Tune the fusion while a session trains; this base class leaves it unchanged.

    Attributes:
        fusion: the policy of the first buckets.
        needs: iterations until it is over.
        trials: completed trials, in order, equal on all ranks.
        schedule: the tuned schedule: the first that runs if there are several; others should wait.
        over: whether the fusion is final.
    """

    schedule: str | None = None
    over = True

    def __init__(self, fusion: str, needs: int = 0) -> None:
        self.fusion, self.needs = fusion, needs
        self.trials: list[Trial] = []

    def look(self, name: str) -> str | None:
        """Count an iteration of the tuned schedule; return the next cut, if any. Collective."""


class ByTrials(Tuning):
    """Try sizes with different cuts on iterations of the run, and end with the best one."""

    over = False

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        (method, low, high), layout = asked(policy), group.layout
        start, sizes = first_size(low, high), distinct_sizes(layout, low, high)
        if len(sizes) < 2:
            alike = plural(len(set(cut_by(layout, start))), "bucket")
            said = f"{size_text(low)} to {size_text(high)} cut this model into the same {alike}"
            whole = size_text(readable(layout.count * layout.itemsize))
            raise ValueError(f"fusion {policy!r}: all sizes from {said}; its parameters have {whole}")
        if method == "bayesian" and group.world.rank == 0:
            check_package()
        self.group, self.search = group, Search(sizes, start=start, method=method)
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
    """Try many buckets on the virtual fabric with the times of this run; then cut once.

    This costs seconds instead of iterations, and also tries ``cut:SIZE``. It is as good as its prediction, which knows
    mutual slowdown of compute and communication only as far as the timed layers showed it.
    """

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
        return self.decided(self.profiler) if self.profiler.noted == WARM + TIMED else None

    def decided(self, profiler: Profiler) -> str:
        """Return rank 0's prediction of the best policy."""
        group, name, layout = self.group, profiler.schedule, self.group.layout
        group.flush()
        costs = profiler.costs(timed=True)

        def predicted(fusion: str) -> Trial:
            rules = group.rules(name, fused(fusion, layout))
            return Trial(fusion, predict(group.schedules[name], rules, costs).iteration_s)

        self.trials = said_by_rank_0(group.world.transport, "tuning", lambda: list(map(predicted, candidates(layout))))
        self.over = True
        return fewest_buckets(self.trials, layout)


TUNINGS: Mapping[str, type[ByTrials] | type[ByPrediction]] = {"bo": ByTrials, "auto": ByPrediction}


def tuning_of(group: WorkerGroup, policy: str, *, before: int) -> Tuning | None:
    """Return the tuner that a fusion asks for, or None. Not collective.

    Raises ValueError if the fusion cannot be read, or does not suit the model.

    Args:
        before: iterations from a cut until schedules have decided their order; 0 if none decides one.
    """
    kind = TUNINGS.get(policy.partition(":")[0])
    return None if kind is None else kind(group, policy, before=before)


def asked(policy: str) -> tuple[str, int, int]:
    """Return the method of a search, and the smallest and the largest size in bytes.

    >>> asked("bo:random"), asked("bo:grid:1MB..64MB")
    (('random', 1048576, 268435456), ('grid', 1048576, 67108864))
    """
    method, low, high = "bayesian", LOW, HIGH
    try:
        for word in policy.split(":")[1:]:
            if ".." in word:
                low, high = map(parse_bytes, word.split("..", 1))
            else:
                lookup("kind", word, METHODS)
                method = word
        if not 0 < low < high:
            raise ValueError("the range must go up from at least 1 B")
    except ValueError as error:
        raise ValueError(f"fusion {policy!r}: {error}; write it like bo, bo:grid or bo:1MB..64MB") from None
    return method, low, high


def check_package() -> None:
    """Raise ValueError if the package for the Bayesian method is not installed."""
    try:
        import bayes_opt  # noqa: F401
    except ImportError:
        what = "Bayesian tuning needs bayesian-optimization: pip install bayesian-optimization (our extra 'tune')"
        raise ValueError(f"{what}, or take bo:random or bo:grid") from None


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
    sizes = distinct_sizes(layout, low, high, per_octave=PER_OCTAVE)
    octaves = (MOST_CUT // LEAST_CUT).bit_length() - 1
    cuts = [readable(round(LEAST_CUT * 2 ** (step / CUTS_PER_OCTAVE))) for step in range(octaves * CUTS_PER_OCTAVE + 1)]
    texts = [size_text(START), *(size_text(size) for size in sizes if size != START)]
    return texts + [f"cut:{size_text(size)}" for size in cuts if size < whole <= MOST_TRIED * size]
