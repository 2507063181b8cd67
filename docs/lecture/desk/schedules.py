"""Schedules on the virtual fabric: a model of equal layers, a wire whose seconds are given, and lanes to draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.contrib.pages.lanes import Names, kinds, run_lanes
from dear_mpi.training.buckets.layout import Bucket, Cut, Layout
from dear_mpi.training.events import KEPT
from dear_mpi.training.events.spans import COMPUTE, WIRE, Run, rank_of
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.fusion import fused
from dear_mpi.training.routes.stages import Sent
from dear_mpi.training.schedules import SCHEDULES, find_schedule
from dear_mpi.training.virtual_trainer import Prediction, VirtualTrainer, predict, rehearse

ELEMENTS = 1 << 18  # of each layer: 1 MiB
HALVES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


@dataclass(frozen=True)
class Setting:
    """A model and a wire. The forward pass takes 4 ms, the backward pass twice as long."""

    layers: int = 4
    buckets: int = 4
    ratio: float = 3.0  # seconds of an all-reduce of all gradients, in those of the forward pass
    startup_ms: float = 0.0  # of a reduce-scatter, or of an all-gather

    forward_s = 4e-3

    @property
    def cut(self) -> Cut:
        layout = Layout.of([[(use, (ELEMENTS,))] for use in range(self.layers)], itemsize=4, ranks=2)
        return fused(f"buckets:{self.buckets}", layout)

    def price(self, stage: Sent, bucket: Bucket) -> float:
        share = bucket.count / (ELEMENTS * self.layers)
        return HALVES[stage.name] * (self.startup_ms / 1e3 + share * self.ratio * self.forward_s / 2)

    @property
    def costs(self) -> Costs:
        each = self.forward_s / self.layers
        return Costs(forward_s=[each] * self.layers, backward_s=[2 * each] * self.layers, price=self.price)


def predicted(name: str, setting: Setting) -> Prediction:
    """What a schedule takes; a ScheduleError, which is a ValueError, if it breaks a rule."""
    kind, buckets = find_schedule(name), setting.cut
    if name not in SCHEDULES:
        rehearse(kind, Rules(name, buckets, kind), setting.layers)
    return predict(kind, Rules(name, buckets, kind), setting.costs, traced=True)


def iterations(name: str, setting: Setting) -> None:
    """Two iterations, as all others are: in the first one there is nothing to wait for yet."""
    kind, buckets = find_schedule(name), setting.cut
    trainer = VirtualTrainer(kind, Rules(name, buckets, kind), setting.costs)
    for _ in range(2):
        trainer.one()


def lanes_of(found: Mapping[str, Prediction], setting: Setting) -> dict[str, Any]:
    """Lanes, bounds and figures, by the names that the page gives the schedules."""
    names, runs, figures = Names(), [], []
    for name, each in found.items():
        assert each.log is not None, "it was traced"
        layers = [str(use) for use in range(setting.layers)]
        rank = rank_of(each.log, "each rank", layers, lambda lane, mark: float(mark), kept=KEPT)
        runs.append(run_lanes(Run(name, (rank,), 1), 1, names))
        figures.append([name, each.iteration_s, each.exposed_s, each.bound_s])
    table = {"lanes": [COMPUTE, WIRE], "kinds": kinds(), "names": names.rows()}
    return {"table": table, "runs": runs, "figures": figures}


def lanes(schedules: Sequence[str], setting: Setting) -> dict[str, Any]:
    """The lanes of some of our schedules."""
    return lanes_of({name: predicted(name, setting) for name in schedules}, setting)
