"""What an iteration would take with other buckets: the trainer and its schedule, on the virtual fabric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.tuning.sizes import START, cut_by, distinct_sizes, readable, size_text
from dear_mpi.training.tuning.tuning import Tried
from dear_mpi.training.virtual_trainer import Costs, VirtualTrainer

TOLD_APART = 0.02  # predictions that differ by less are alike
LOW, HIGH, PARTS = 1 << 20, 256 << 20, 64  # bytes; of small models, as a part of all parameters
PER_OCTAVE, CUTS_PER_OCTAVE, LEAST_CUT, MOST_CUT = 8, 2, 1 << 18, 1 << 25
MOST_TRIED = 10_000  # more buckets take rank 0 too long to look at


@dataclass(frozen=True, kw_only=True)
class VirtualRun:
    """A model with its schedule.

    Attributes:
        judged: whether all gradients are looked at before any of them is used.
    """

    layout: Layout
    schedule: type[Schedule]
    costs: Costs
    route: Route = FULL
    judged: bool = False

    def seconds(self, fusion: str) -> float:
        """Seconds of an iteration, when the pipeline is full.

        Raises:
            ValueError: the policy cannot be read, or the schedule breaks a rule.
        """
        buckets, schedule = self.buckets(fusion), self.schedule
        rules = Rules(schedule.__name__, buckets, schedule, judged=self.judged, route=self.route)
        return VirtualTrainer(schedule, rules, self.costs).mean_s()

    def buckets(self, fusion: str) -> Cut:
        """The buckets of a policy."""
        return fused(fusion, self.layout)

    def choice(self, trials: Sequence[Tried]) -> str:
        """The policy with the fewest buckets among those that cannot be told from the best one: what a collective costs
        besides its time on the wire is what a prediction knows least about."""
        limit_s = (1 + TOLD_APART) * min(tried.seconds for tried in trials)
        good = [tried.fusion for tried in trials if tried.seconds <= limit_s]
        return min(good, key=lambda fusion: len(self.buckets(fusion)))

    def tried(self, fusions: Iterable[str]) -> list[Tried]:
        """The seconds of each of several policies."""
        return [Tried(fusion, self.seconds(fusion)) for fusion in fusions]


def candidates(layout: Layout) -> list[str]:
    """Policies that are worth a look: 25 MB first, sizes that cut this model differently, and ``cut:SIZE``.

    >>> layout = Layout.of([[("a", (1 << 20,))], [("b", (1 << 20,))]], itemsize=4, ranks=2)
    >>> candidates(layout)[:4]
    ['25MB', '995KB', 'cut:256KB', 'cut:362KB']
    """
    whole = layout.count * layout.itemsize
    low, high = readable(max(1, min(LOW, whole // PARTS))), max(START, min(HIGH, whole))
    sizes = distinct_sizes(lambda size: cut_by(layout, size), low, high, start=START, per_octave=PER_OCTAVE)
    octaves = (MOST_CUT // LEAST_CUT).bit_length() - 1
    cuts = [readable(round(LEAST_CUT * 2 ** (step / CUTS_PER_OCTAVE))) for step in range(octaves * CUTS_PER_OCTAVE + 1)]
    texts = [size_text(START), *(size_text(size) for size in sizes if size != START)]
    return texts + [f"cut:{size_text(size)}" for size in cuts if size < whole <= MOST_TRIED * size]
