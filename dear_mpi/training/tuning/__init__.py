"""Tuning: which buckets make an iteration shortest, found by trials or by prediction."""

from collections.abc import Mapping

from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.tuning.by_prediction import AUTO, ByPrediction
from dear_mpi.training.tuning.by_trials import BY_TRIALS, ByTrials
from dear_mpi.training.tuning.tuned_fusion import TunedFusion

TUNINGS: Mapping[str, type[ByTrials] | type[ByPrediction]] = {BY_TRIALS: ByTrials, AUTO: ByPrediction}


def tuning_of(group: WorkerGroup, policy: str, *, before: int) -> TunedFusion | None:
    """What a fusion asks for, or None if it is not one that is tuned; not collective.

    Args:
        before: iterations from a cut on until schedules have decided their order; 0 if none foresees one.

    Raises:
        ValueError: it cannot be read, or does not suit the model.
    """
    kind = TUNINGS.get(policy.partition(":")[0])
    return None if kind is None else kind(group, policy, before=before)
