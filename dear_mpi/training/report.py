"""What a run reports: the JSON object of ``train``, and the figures of one schedule.

The names of the keys are a contract: scripts depend on them. Times are in seconds; a time of an iteration is that
of the slowest rank, and ``compute_s``, ``exposed_comm_s`` and ``bound_s`` leave out the first iteration of each
block, which fills the pipeline.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.training.bounds import Communication
from dear_mpi.training.job import Job
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.trainer import Times

__all__ = ["Timing", "describe", "timing"]


@dataclass(frozen=True)
class Timing:
    """The figures of one schedule, over all ranks."""

    iteration_s: list[float]
    compute_s: float
    exposed_comm_s: float
    bound_s: float
    steady_s: list[float] = field(repr=False)


def timing(transport: Transport, schedule: str, blocks: Sequence[Sequence[Times]], network: Communication) -> Timing:
    """Collective: put together what the ranks measured.

    Args:
        blocks: runs of iterations; the first of each block fills the pipeline.
    """
    slowest = [np.max(ranks, axis=0) for ranks in zip(*transport.gather_values(blocks), strict=True)]
    steady = np.concatenate([block[1:] if len(block) > 1 else block for block in slowest])
    _, forward_s, backward_s, exposed_s = np.median(steady, axis=0).tolist()
    return Timing(
        iteration_s=np.concatenate(slowest)[:, 0].tolist(),
        compute_s=forward_s + backward_s,
        exposed_comm_s=exposed_s,
        bound_s=SCHEDULES[schedule].bound(forward_s, backward_s, *network),
        steady_s=steady[:, 0].tolist(),
    )


def describe(job: Job, schedule: str, figures: Timing) -> dict[str, Any]:
    """The keys that ``train`` and ``compare`` have in common."""
    config, world = job.config, job.world
    return {
        "schedule": schedule,
        "algorithm": config.algorithm,
        "fusion": config.fusion,
        "buckets": len(job.buckets),
        "ranks": world.size,
        "hosts": world.ranks_per_host,
        "device": config.device,
        "emulated_link": None if world.link is None else str(world.link),
        "model": config.model,
        "data": None if job.workload.dataset is None else config.data,
        "dtype": config.dtype,
        "wire": config.wire or config.dtype,
        "batch": config.batch,
        "seed": config.seed,
        "transport": world.transport.name,
        "iterations": len(figures.iteration_s),
        "iteration_s": figures.iteration_s,
        "compute_s": figures.compute_s,
        "exposed_comm_s": figures.exposed_comm_s,
        "bound_s": figures.bound_s,
    }
