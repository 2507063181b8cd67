"""What a session does about its fusion while it trains: nothing, or what ``by_trials.py`` or ``by_prediction.py`` does.

What a tuned fusion decides depends on clocks, and no two ranks have the same. So rank 0 decides what is next, and tells
the others. All of them cut at the same point between two iterations.
"""

from dear_mpi.training.tuning.search import Trial


class TunedFusion:
    """Leaves the fusion as it is.

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
