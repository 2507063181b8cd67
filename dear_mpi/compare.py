"""Run several schedules on one job, taking turns: the command ``dear-mpi compare``.

All schedules share the model, the buckets and the network, and alternate in short blocks, so that whatever else
the machine does hits them alike. The first iteration of each block fills the pipeline and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dear_mpi.bounds import communication
from dear_mpi.config import Config
from dear_mpi.engine import Engine
from dear_mpi.job import Job
from dear_mpi.kernels.choose import choose
from dear_mpi.report import Timing, describe, timing
from dear_mpi.schedules import SCHEDULES
from dear_mpi.stats import median, ratio
from dear_mpi.trainer import Times, Trainer
from dear_mpi.world import World

__all__ = ["compare", "rounds"]

BLOCK = 3  # counted iterations of one schedule before the next one's turn


def compare(
    config: Config,
    world: World,
    schedules: Sequence[str],
    progress: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:
    """Time each schedule for ``config.iterations`` iterations. Collective.

    Args:
        schedules: names; speed-ups are against the first.
        progress: called after each block with the schedule's name.

    Returns:
        For each schedule what ``train`` reports, without accuracy, and ``median_s``, ``median_low_s``,
        ``median_high_s`` (95 % interval), ``speedup``, ``ci_low``, ``ci_high``.
    """
    for name in schedules:
        choose("schedule", name, SCHEDULES)
    with Engine() as engine:
        job = Job(config, world, engine)
        network = communication(job.exchange)
        trainers = {name: job.trainer(name) for name in schedules}
        blocks: dict[str, list[list[Times]]] = {name: [] for name in schedules}
        for _ in range(rounds(config)):
            for name, trainer in trainers.items():
                blocks[name].append(block(job, trainer))
                if progress is not None:
                    progress(name)
        figures = {name: timing(world.transport, name, blocks[name], network) for name in schedules}
        rows = [
            describe(job, name, figures[name]) | compared(figures[name], figures[schedules[0]]) for name in schedules
        ]
        digest = job.agreed_sha256()
        for trainer in trainers.values():
            trainer.free()
    return [row | {"params_sha256": digest} for row in rows]


def rounds(config: Config) -> int:
    """How often each schedule has its turn."""
    return -(-config.iterations // BLOCK)


def block(job: Job, trainer: Trainer) -> list[Times]:
    """A few iterations of one schedule, after one that is not counted."""
    times = [trainer.iteration(*job.batch(trainer.done))[1] for _ in range(BLOCK + 1)]
    trainer.schedule.flush()
    return times


def compared(figures: Timing, baseline: Timing) -> dict[str, float]:
    """Median and speed-up over the baseline, with intervals."""
    middle = median(figures.steady_s)
    speedup = ratio(baseline.steady_s, figures.steady_s)
    return {
        "median_s": middle.value,
        "median_low_s": middle.low,
        "median_high_s": middle.high,
        "speedup": speedup.value,
        "ci_low": speedup.low,
        "ci_high": speedup.high,
    }
