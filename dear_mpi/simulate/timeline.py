"""Make a timeline of simulated rows: one run for each row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dear_mpi.reporting.units import plural
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.table import heading
from dear_mpi.training.fabric.virtual import of_rank
from dear_mpi.training.log.log import KEPT, Log
from dear_mpi.training.log.spans import Rank, Run, Timeline, common, rank_of

FACTS = ("model", "ranks", "schedule", "fusion", "buckets", "algorithm", "network", "compute")
MOST_RANKS = 64  # shown at most


def timeline_of(found: Sequence[Simulated]) -> Timeline:
    """Return the runs with a kept log, each named by its schedule and its other varied settings."""
    rows = [each.row for each in found]
    told = {"model": "{}".format, "ranks": lambda ranks: plural(ranks, "rank"), "fusion": "fusion {}".format}
    told |= {"algorithm": "{}".format, "wire": "{}".format}
    varied = [name for name in told if len({row[name] for row in rows}) > 1]

    def name(row: Mapping[str, Any]) -> str:
        return ", ".join([row["schedule"], *(told[each](row[each]) for each in varied)])

    logs = [(each, each.prediction.log) for each in found]
    runs = [run_of(log, name(each.row), each.scenario.model.names, each.row["ranks"]) for each, log in logs if log]
    facts = common([{name: row[name] for name in FACTS} for row in rows]) | {"origin": heading(found)}
    return Timeline(live=False, runs=tuple(runs), facts=facts)


def run_of(log: Log, name: str, layers: Sequence[str], ranks: int) -> Run:
    """Return the ranks' last iterations, as a single rank if all are alike."""
    clocks = np.size(log.last.end)
    names = [f"rank {rank}" for rank in range(min(clocks, MOST_RANKS))]
    if clocks == 1 < ranks:
        names = [f"each of {ranks} ranks"]

    def traced(rank: int) -> Rank:
        return rank_of(log, names[rank], layers, lambda lane, mark: of_rank(mark, rank), kept=KEPT)

    return Run(name, tuple(map(traced, range(len(names)))), ranks)
