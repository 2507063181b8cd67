"""Train a model with one schedule: the command ``dear-mpi train``."""

from collections.abc import Callable
from typing import Any

from dear_mpi.ranks.world import World
from dear_mpi.training.bounds import communication
from dear_mpi.training.config import Config
from dear_mpi.training.job import Job
from dear_mpi.training.report import describe, timing
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.trainer import Times

__all__ = ["train"]


def train(config: Config, world: World, progress: Callable[[int, float], object] | None = None) -> dict[str, Any]:
    """Train, test, and report. Collective.

    Args:
        config: what the user chose.
        world: the ranks.
        progress: called after each iteration with its number, from 1, and the loss.

    Returns:
        The JSON object of ``dear-mpi train``, the same on all ranks.

    Raises:
        AgreedError: something in ``config`` is not allowed, or the ranks were asked for different things.
        TrainingError: the loss or a gradient is infinite or not a number.
    """
    with Job(config, world, [config.schedule]) as job:
        network = communication(job.fabric, find_schedule(config.schedule).collectives)
        trainer = job.trainers[config.schedule]
        losses: list[float] = []
        times: list[Times] = []
        for iteration in range(config.iterations):
            loss, spent = job.iterate(config.schedule, *job.batch(iteration))
            losses.append(loss)
            times.append(spent)
            if progress is not None:
                progress(iteration + 1, loss)
        trainer.schedule.flush()
        figures = timing(world.transport, config.schedule, [times], network)
        return describe(job, config.schedule, figures) | {"loss": losses} | job.outcome()
