"""``--fusion bo``: sizes of buckets are tried on the iterations of a run, which trains on meanwhile.

    iteration   | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
                 fill    timed: the median of what the slowest rank took

After a cut nothing is under way. So the first iteration waits for less than others, or makes what later ones use.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_bytes, plural
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.tuning.search import METHODS, Search, check_package
from dear_mpi.training.tuning.sizes import START, cut_by, distinct_sizes, readable, size_text
from dear_mpi.training.tuning.tuned_fusion import TunedFusion, said_by_rank_0

BY_TRIALS, BETWEEN = "bo", ".."
FILL, TIMED = 2, 3  # iterations of each trial


@dataclass(frozen=True)
class Asked:
    """What is asked for: ``bo``, ``bo:random``, ``bo:1MB..64MB``, ``bo:grid:1MB..64MB``.

    Attributes:
        method: of a ``Search``.
        low, high: the smallest and the largest size in bytes; by default as in DeAR's published code.
        policy: the fusion that asks for it.
    """

    method: str = "bayesian"
    low: int = 1 << 20
    high: int = 256 << 20
    policy: str = BY_TRIALS

    @classmethod
    def of(cls, policy: str) -> Asked:
        """
        Raises:
            ValueError: the policy cannot be read.

        >>> asked = Asked.of("bo:grid:1MB..64MB")
        >>> asked.method, asked.low, asked.high, asked.start
        ('grid', 1048576, 67108864, 26214400)
        """
        method, low, high = cls.method, cls.low, cls.high
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
        return cls(method, low, high, policy)

    @property
    def start(self) -> int:
        """The size to begin with: 25 MB, or the middle of a range that does not have it."""
        if self.low <= START <= self.high:
            return START
        return min(max(readable(round((self.low * self.high) ** 0.5)), self.low), self.high)

    def search(self, layout: Layout) -> Search:
        """The search among sizes that cut this line differently.

        Raises:
            ValueError: they all cut it alike.
        """
        sizes = distinct_sizes(layout, self.low, self.high, start=self.start)
        if len(sizes) < 2:
            alike = plural(len(set(cut_by(layout, self.start))), "bucket")
            said = f"{size_text(self.low)} to {size_text(self.high)} cut this model into the same {alike}"
            whole = size_text(readable(layout.count * layout.itemsize))
            raise ValueError(f"fusion {self.policy!r}: all sizes from {said}; its parameters have {whole}")
        return Search(sizes, start=self.start, method=self.method)


class ByTrials(TunedFusion):
    """Tries sizes, and ends with the best one.

    Args:
        policy: as ``Asked`` reads it.
        before: as for ``tuning_of``.

    Raises:
        ValueError: the policy cannot be read, its sizes all cut this model alike, or (on rank 0) a package is missing.
    """

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        asked = Asked.of(policy)
        self.group, self.search = group, asked.search(group.layout)
        if group.world.rank == 0:
            check_package(asked.method)
        super().__init__(self.search.ask())
        self.cut_as, self.over, self.trials = policy, False, self.search.trials
        self.needs = self.search.most * (FILL + TIMED + before)
        self.times_s: list[float] = []

    def look(self, name: str) -> str | None:
        self.times_s.append(self.group.trainers[name].times.iteration_s)
        return self.end_trial() if len(self.times_s) == FILL + TIMED else None

    def end_trial(self) -> str:
        """Tell what the slowest rank took; what rank 0 asks for next."""
        self.group.flush()
        transport = self.group.world.transport
        ranks = transport.gather_values(self.times_s[FILL:])
        self.times_s.clear()
        self.search.tell(self.fusion, median(max(each) for each in zip(*ranks, strict=True)))
        self.over = self.search.over
        return said_by_rank_0(transport, self.search.ask)
