"""``--fusion bo``: sizes of buckets are tried on the iterations of a run, which trains on meanwhile.

    iteration   | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
                 fill    timed: the median of what the slowest rank took

After a cut nothing is under way. So the first iteration waits for less than others, or makes what later ones use.
"""

from statistics import median

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_bytes, plural
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.tuning.search import METHODS, Search
from dear_mpi.training.tuning.sizes import cut_by, distinct_sizes, first_size, readable, size_text
from dear_mpi.training.tuning.tuned_fusion import TunedFusion

BY_TRIALS, BETWEEN = "bo", ".."
LOW, HIGH = 1 << 20, 256 << 20  # bytes, as in DeAR's published code
FILL, TIMED = 2, 3  # iterations of each trial


class ByTrials(TunedFusion):
    """Tries sizes that cut the line differently, and ends with the best one; for its parameters see ``tuning_of``.

    Raises:
        ValueError: the policy cannot be read, its sizes all cut this model alike, or (on rank 0) a package is missing.
    """

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


def asked(policy: str) -> tuple[str, int, int]:
    """The method of a search, and the smallest and the largest size in bytes.

    Raises:
        ValueError: the policy cannot be read.

    >>> asked("bo:random"), asked("bo:grid:1MB..64MB")
    (('random', 1048576, 268435456), ('grid', 1048576, 67108864))
    """
    method, low, high = "bayesian", LOW, HIGH
    try:
        for word in policy.split(":")[1:]:
            if BETWEEN in word:
                low, high = (parse_bytes(end) for end in word.split(BETWEEN, 1))
            else:
                lookup("kind", word, METHODS)
                method = word
        if not 0 < low < high:
            raise ValueError("the range must go up from at least 1 B")
    except ValueError as error:
        raise ValueError(f"fusion {policy!r}: {error}; write it like bo, bo:grid or bo:1MB..64MB") from None
    return method, low, high


def check_package() -> None:
    """See that the Bayesian method can work; ValueError if its package is not installed."""
    try:
        import bayes_opt  # noqa: F401
    except ImportError:
        what = "Bayesian tuning needs bayesian-optimization: pip install bayesian-optimization (our extra 'tune')"
        raise ValueError(f"{what}, or take bo:random or bo:grid") from None
