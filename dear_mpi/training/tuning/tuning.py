"""What a session does about its fusion while it trains: nothing, or what ``by_trials.py`` or ``by_prediction.py`` does.

What a tuned fusion decides depends on clocks, and no two ranks have the same. So rank 0 decides what is next, and when
to stop, and tells the others. All of them cut at the same point between two iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.collectives.transports.transport import Transport

T = TypeVar("T")


@dataclass(frozen=True)
class Tried:
    """A fusion, and what an iteration takes with it."""

    fusion: str
    seconds: float


class Tuning:
    """Leaves the fusion as it is.

    Attributes:
        fusion: the policy of the buckets as they are now.
        trials: those so far, in order; all ranks have the same.
        schedule: the name of the schedule that is tuned, when it is known.
        over: whether it leaves the fusion as it is from now on.
    """

    needs = 0  # iterations until it is over

    def __init__(self, fusion: str) -> None:
        self.fusion = fusion
        self.trials: list[Tried] = []
        self.schedule: str | None = None
        self.over = True

    def note(self, name: str, fusion: str) -> str | None:
        """Collective: an iteration is over, of a schedule whose order is decided; returns how to cut buckets next.

        Of several schedules the one that comes first is tuned; the others should wait until it is over. What a user has
        cut in another way is tuned no more.

        Args:
            name: of the schedule.
            fusion: by which buckets were cut last.
        """
        return None

    def is_for(self, name: str) -> bool:
        """Whether this schedule is tuned, and not over yet; the first one that asks is."""
        self.schedule = self.schedule or name
        return name == self.schedule and not self.over

    def check_room(self, iterations: int) -> dict[str, Any]:
        """See that a run of so many iterations is long enough.

        Raises:
            ValueError: it is not.
        """
        if self.needs and iterations <= self.needs:
            said = f"tuning takes {self.needs} iterations, and at least one has to follow"
            raise ValueError(f"iterations must be more than {self.needs}, not {iterations}: {said}")
        return {}

    def report(self, asked: str) -> dict[str, Any]:
        """What a run that asked for this fusion reports of it."""
        if not self.trials:
            return {"fusion": asked, "tuner": None, "tuned": []}
        return {"fusion": self.fusion, "tuner": asked, "tuned": [asdict(tried) for tried in self.trials]}


def said_by_rank_0(transport: Transport, what: str, decide: Callable[[], T]) -> T:
    """Collective: what rank 0 decides, on all ranks; ArgumentError on all of them if it fails there."""
    found: list[T] = []
    by_rank_0(transport, what, lambda: found.append(decide()))
    decided: T = transport.gather_values(found)[0][0]
    return decided
