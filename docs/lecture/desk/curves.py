"""Curves: what algorithms take by size, and what schedules take by the number of buckets."""

from collections.abc import Sequence
from typing import Any

from dear_mpi.collectives.program.cost import Network
from docs.lecture.desk.algorithms import seconds_of

SIZES = tuple(1 << power for power in range(8, 28, 2))
ALGORITHMS = ("ring", "bidirectional", "recursive_doubling", "rabenseifner")
CUTS = (1, 2, 4, 8, 16)
SCHEDULES = ("wfbp", "dear", "dear-eager")


def curves(
    *, ranks: int = 8, alpha_us: float = 50.0, gbit: float = 10.0, algorithms: Sequence[str] = ALGORITHMS
) -> dict[str, Any]:
    """Seconds of all-reduces of ``SIZES`` bytes."""
    network = Network(alpha=alpha_us * 1e-6, beta=8e-9 / gbit)
    lines = [
        {"name": name, "y": [seconds_of(name, "all_reduce", ranks, nbytes, network) for nbytes in SIZES]}
        for name in algorithms
    ]
    return {"x": list(SIZES), "lines": lines}


def cuts(*, startup_ms: float = 0.3, ratio: float = 3.0) -> dict[str, Any]:
    """Seconds of an iteration of a model of 16 layers, cut into ``CUTS`` buckets."""
    from docs.lecture.desk.schedules import Setting, predicted

    settings = [Setting(16, count, ratio, startup_ms) for count in CUTS]
    lines = [{"name": name, "y": [predicted(name, each).iteration_s for each in settings]} for name in SCHEDULES]
    return {"x": list(CUTS), "lines": lines}
