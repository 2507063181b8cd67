"""The timeline of what was simulated: one run for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dear_mpi.reporting.units import plural
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.table import heading
from dear_mpi.training.log.spans import Run, Timeline, common

FACTS = ("model", "ranks", "schedule", "fusion", "buckets", "algorithm", "network", "compute")


def timeline_of(found: Sequence[Simulated]) -> Timeline:
    """The runs that ``simulate`` has kept, each named by its schedule and by what else was varied."""
    rows = [each.row for each in found]
    told = {"model": "{}".format, "ranks": lambda ranks: plural(ranks, "rank"), "fusion": "fusion {}".format}
    told["algorithm"] = "{}".format
    varied = [name for name in told if len({row[name] for row in rows}) > 1]

    def named(run: Run, each: Simulated) -> Run:
        return replace(run, name=", ".join([each.row["schedule"], *(told[name](each.row[name]) for name in varied)]))

    runs = [named(each.prediction.run, each) for each in found if each.prediction.run is not None]
    facts = common([{name: row[name] for name in FACTS} for row in rows]) | {"origin": heading(found)}
    return Timeline(live=False, runs=tuple(runs), facts=facts)
