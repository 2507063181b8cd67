"""``--fusion bo``: sizes of buckets are tried on the iterations of a run, which trains on meanwhile.

    iteration   | 1 2 | 3 4 5 | flush, rank 0 decides, cut | 1 2 | 3 4 5 | ...
                 fill    timed: the median of what the slowest rank took

After a cut nothing is under way. So the first iteration waits for less than others, or makes what later ones use.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dear_mpi.reporting.units import plural
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.tuning.asked import Asked
from dear_mpi.training.tuning.sizes import cut_by, distinct_sizes, readable, size_text
from dear_mpi.training.tuning.tuner import TRIALS, Tuner
from dear_mpi.training.tuning.tuning import Tried, Tuning, said_by_rank_0

FILL, TIMED = 2, 3  # iterations of each trial


@dataclass(frozen=True)
class Next:
    """What rank 0 says after a trial."""

    nbytes: int
    over: bool


class ByTrials(Tuning):
    """Tries sizes, and ends with the best one. A session that its user cuts is tuned no more.

    Args:
        policy: as ``Asked`` reads it.
        before: iterations from a cut on until the schedule has decided its order, if it foresees one.

    Raises:
        ValueError: the policy cannot be read, its sizes all cut this model alike, or (on rank 0) a package is missing.
    """

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        self.group, self.policy, layout, asked = group, policy, group.layout, Asked.of(policy)
        sizes = distinct_sizes(lambda size: cut_by(layout, size), asked.low, asked.high, start=asked.start)
        if len(sizes) < 2:
            alike = plural(len(set(cut_by(layout, asked.start))), "bucket")
            said = f"{size_text(asked.low)} to {size_text(asked.high)} cut this model into the same {alike}"
            whole = size_text(readable(layout.count * layout.itemsize))
            raise ValueError(f"fusion {policy!r}: all sizes from {said}; its parameters have {whole}")
        self.tuner: Tuner | None = asked.tuner(sizes, start=asked.start) if group.world.rank == 0 else None
        super().__init__(size_text(asked.start))
        self.nbytes, self.over = asked.start, False
        foresees = any(schedule.foresees for schedule in group.schedules.values())
        self.needs = min(TRIALS, len(sizes)) * (FILL + TIMED + before * foresees)
        self.times_s: list[float] = []

    def note(self, name: str, fusion: str) -> str | None:
        if not self.is_for(name):
            return None
        if fusion not in (self.policy, self.fusion):
            self.over = True
            return None
        self.times_s.append(self.group.trainers[name].times.iteration_s)
        return self.end_trial() if len(self.times_s) == FILL + TIMED else None

    def end_trial(self) -> str:
        """Tell rank 0's tuner what the slowest rank took; how it goes on."""
        group = self.group
        group.flush()
        ranks = group.world.transport.gather_values(self.times_s[FILL:])
        seconds = median(max(each) for each in zip(*ranks, strict=True))
        self.trials.append(Tried(self.fusion, seconds))
        said = said_by_rank_0(group.world.transport, "tuning", lambda: self.decide(seconds))
        self.nbytes, self.fusion, self.over = said.nbytes, size_text(said.nbytes), said.over
        self.times_s.clear()
        return self.fusion

    def decide(self, seconds: float) -> Next:
        """On rank 0."""
        assert self.tuner is not None, "rank 0 has the tuner"
        self.tuner.tell(self.nbytes, seconds)
        return Next(self.tuner.suggest(), self.tuner.over)
