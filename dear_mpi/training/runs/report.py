"""What a run reports: the JSON object of ``train``, and the figures of one schedule.

The names of the keys are a contract: scripts depend on them. Times are in seconds, and times of iterations are the
slowest rank's. ``compute_s`` and ``exposed_comm_s`` are of the iteration of median length, on its slowest rank, without
the first iterations of each block, which fill the pipeline. Where a route has rounds of ``period`` iterations,
``compare`` takes the mean iteration of the round of median length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.training.declared import options_of
from dear_mpi.training.log.log import Times, middle
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import Schedule


@dataclass(frozen=True)
class Timing:
    """All but the lists are of the iteration of median length, so that they add up."""

    iteration_s: list[float]
    forward_s: float
    backward_s: float
    exposed_comm_s: float
    bound_s: float
    counted_s: list[float] = field(repr=False)  # of iterations without those that fill the pipeline
    steady_s: list[float] = field(repr=False)  # of those, or means of whole rounds of them: samples that are alike

    @property
    def rest_s(self) -> float:
        """What is neither a layer nor waiting, as updates, the loss and packing."""
        known_s = self.forward_s + self.backward_s + self.exposed_comm_s
        return max(0.0, float(np.median(self.steady_s)) - known_s)  # not -1e-17


def timing(
    transport: Transport,
    schedule: type[Schedule],
    blocks: Sequence[Sequence[Times]],
    network: Mapping[str, float],
    *,
    fill: int = 1,
    early: int = 0,
    period: int = 1,
    parts: int = 1,
) -> Timing:
    """Collective: put together what the ranks measured.

    Args:
        blocks: runs of iterations.
        fill: how many at the beginning of each do not count, because they fill the pipeline; the last always counts.
        early: how many blocks at the beginning do not count at all.
        period: iterations of a round, which are not alike.
        parts: into how many a batch is split.
        network: see ``communication`` in ``costs/plan_cost.py``.
    """
    slowest = []
    for ranks in zip(*transport.gather_values(blocks), strict=True):
        times = np.array(ranks)  # of ranks and iterations; those of an iteration are of one rank, so that they add up
        slowest.append(times[times[:, :, 0].argmax(axis=0), np.arange(times.shape[1])])
    counted = np.concatenate([block[min(fill, len(block) - 1) :] for block in slowest[early:]])
    steady = counted if period == 1 else counted.reshape(-1, period, counted.shape[1]).mean(axis=1)
    # of median length, or the mean of the two in the middle
    _, forward_s, backward_s, exposed_s = middle(steady, (len(steady) - 1) // 2, by=0).tolist()
    return Timing(
        iteration_s=np.concatenate(slowest)[:, 0].tolist(),
        forward_s=forward_s,
        backward_s=backward_s,
        exposed_comm_s=exposed_s,
        bound_s=schedule.least(forward_s, backward_s, network, parts),
        counted_s=counted[:, 0].tolist(),
        steady_s=steady[:, 0].tolist(),
    )


def describe(job: Job, schedule: str, figures: Timing) -> dict[str, Any]:
    """The keys that ``train`` and ``compare`` have in common."""
    config, world = job.config, job.world
    chosen = {name: getattr(config, name) for name, said in options_of(Config).items() if said.reported}
    return {
        "schedule": schedule,
        **chosen,
        "update": "sharded" if job.group.route.update.shard else "full",
        "route": job.group.route.name,
        "period": job.group.route.period,
        "optimizer": str(job.options.optimizer),
        "chosen": job.group.fabric.chosen(job.schedules[schedule].collectives),
        "buckets": len(job.group.buckets),
        "ranks": world.size,
        "weights": job.group.owners.weights,
        "hosts": world.ranks_per_host,
        "emulated_link": None if world.link is None else str(world.link),
        "rates_GBps": None if world.transport.rates is None else [rate * 1e-9 for rate in world.transport.rates],
        "data": None if job.workload.dataset is None else config.data,
        "wire": config.wire_name,
        "unfit": job.group.fabric.tally[False],
        "transport": world.transport.name,
        "iterations": len(figures.iteration_s),
        "iteration_s": figures.iteration_s,
        "compute_s": figures.forward_s + figures.backward_s,
        "exposed_comm_s": figures.exposed_comm_s,
        "bound_s": figures.bound_s,
    }
