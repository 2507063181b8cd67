"""What a session does about its fusion while it trains: nothing, or what ``--fusion bo`` or ``auto`` asks for.

    bo     | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
            fill    timed: the median of what the slowest rank took

    auto   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
             first fill  timed

What is decided depends on clocks, and no two ranks have the same. So rank 0 decides what is next, and tells the others.
All of them cut at the same point between two iterations. After a cut nothing is under way: so the first iteration waits
for less than others, or makes what later ones use.
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

LOW, HIGH, MANY = 1 << 20, 256 << 20, 64  # bytes, as in DeAR's published code; of small models, so many buckets
FILL, TIMED = 2, 3  # iterations

TOLD_APART = 0.02  # predictions that differ by less are alike
PER_OCTAVE, CUTS_PER_OCTAVE, LEAST_CUT, MOST_CUT = 8, 2, 1 << 18, 1 << 25
MOST_TRIED = 10_000  # more buckets take rank 0 too long to look at


class Tuning:
    """How the fusion is tuned while a session trains; this one leaves it as it is.

    Attributes:
        fusion: the policy of the first buckets.
        needs: iterations until it is over.
        trials: those so far, in order; all ranks have the same.
        schedule: the name of the one that is tuned: of several the first that comes, for which others should wait.
        over: whether it leaves the fusion as it is from now on.
    """

    schedule: str | None = None
    over = True

    def __init__(self, fusion: str, needs: int = 0) -> None:
        self.fusion, self.needs = fusion, needs
        self.trials: list[Trial] = []

    def look(self, name: str) -> str | None:
        """Collective: an iteration of the schedule that is tuned is over; returns how to cut buckets next."""


class ByTrials(Tuning):
    """Tries sizes that cut the line differently on iterations of the run, and ends with the best one."""

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
    """The virtual fabric tries many buckets with the times of this run, and one cut follows.

    It costs seconds instead of iterations, and tries ``cut:SIZE``, too. It is as good as its prediction, which has no
    more of how compute and communication slow each other down than the layers showed while they were timed.
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
        """What rank 0 predicts to be best."""
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
    """What a fusion asks for, or None if it is not one that is tuned; ValueError if it cannot be read, or does not suit
    the model. Not collective.

    Args:
        before: iterations from a cut on until schedules have decided their order; 0 if none foresees one.
    """
    kind = TUNINGS.get(policy.partition(":")[0])
    return None if kind is None else kind(group, policy, before=before)


def asked(policy: str) -> tuple[str, int, int]:
    """The method of a search, and the smallest and the largest size in bytes.

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
    """A ValueError if the package of the Bayesian method is not installed."""
    try:
        import bayes_opt  # noqa: F401
    except ImportError:
        what = "Bayesian tuning needs bayesian-optimization: pip install bayesian-optimization (our extra 'tune')"
        raise ValueError(f"{what}, or take bo:random or bo:grid") from None


def fewest_buckets(trials: Sequence[Trial], layout: Layout) -> str:
    """The policy with the fewest buckets among those that cannot be told from the best one: what a collective costs
    besides its time on the wire is what a prediction knows least about."""
    limit_s = (1 + TOLD_APART) * min(trial.seconds for trial in trials)
    good = [trial.fusion for trial in trials if trial.seconds <= limit_s]
    return min(good, key=lambda fusion: len(fused(fusion, layout)))


def candidates(layout: Layout) -> list[str]:
    """Policies that are worth a look: 25 MB first, sizes that cut this model differently, and ``cut:SIZE``.

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
