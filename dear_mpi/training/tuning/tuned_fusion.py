"""What a session does about its fusion while it trains: nothing, or what ``by_trials.py`` or ``by_prediction.py`` does.

What a tuned fusion decides depends on clocks, and no two ranks have the same. So rank 0 decides what is next, and tells
the others. All of them cut at the same point between two iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.training.tuning.search import Trial

T = TypeVar("T")


class TunedFusion:
    """Leaves the fusion as it is.

    Attributes:
        fusion: the policy of the buckets as they are now.
        trials: those so far, in order; all ranks have the same.
        schedule: the name of the schedule that is tuned, when it is known.
        over: whether it leaves the fusion as it is from now on.
        needs: iterations until it is over.
    """

    needs = 0

    def __init__(self, fusion: str) -> None:
        self.fusion = self.cut_as = fusion
        self.trials: list[Trial] = []
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
        self.schedule = self.schedule or name
        if self.over or name != self.schedule:
            return None
        if fusion != self.cut_as:
            self.over = True
            return None
        found = self.look(name)
        if found is not None:
            self.fusion = self.cut_as = found
        return found

    def look(self, name: str) -> str | None:
        """Collective: an iteration of the schedule that is tuned is over; returns how to cut buckets next."""

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
        return {"fusion": self.fusion, "tuner": asked, "tuned": [asdict(trial) for trial in self.trials]}


def said_by_rank_0(transport: Transport, decide: Callable[[], T]) -> T:
    """Collective: what rank 0 decides, on all ranks; ArgumentError on all of them if it fails there."""
    found: list[T] = []
    by_rank_0(transport, "tuning", lambda: found.append(decide()))
    decided: T = transport.gather_values(found)[0][0]
    return decided
