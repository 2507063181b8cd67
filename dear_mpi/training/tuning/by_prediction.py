"""``--fusion auto``: the virtual fabric tries many buckets with the times of this run, and one cut follows.

    iteration   | 1 | 2 3 | 4 5 6 | flush, time a few collectives, predict on rank 0, cut | 7 ...
                  first fill  timed

It costs seconds instead of iterations, and tries ``cut:SIZE``, too. It is as good as its prediction, which has no more
of how compute and communication slow each other down than the layers showed while they were timed.
"""

from collections.abc import Sequence

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.profiles.profiler import WARM, Profiler
from dear_mpi.training.tuning.search import Trial
from dear_mpi.training.tuning.sizes import START, distinct_sizes, readable, size_text
from dear_mpi.training.tuning.tuned_fusion import TunedFusion
from dear_mpi.training.virtual_trainer import predict

AUTO = "auto"
TIMED = 3  # iterations

TOLD_APART = 0.02  # predictions that differ by less are alike
LOW, HIGH, MANY = 1 << 20, 256 << 20, 64  # bytes; of small models, so many buckets
PER_OCTAVE, CUTS_PER_OCTAVE, LEAST_CUT, MOST_CUT = 8, 2, 1 << 18, 1 << 25
MOST_TRIED = 10_000  # more buckets take rank 0 too long to look at


class ByPrediction(TunedFusion):
    """Cuts once, as the prediction says; for its parameters and errors see ``tuning_of``."""

    over = False
    profiler: Profiler | None = None

    def __init__(self, group: WorkerGroup, policy: str, *, before: int) -> None:
        if policy != AUTO:
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
