"""Run several schedules on one job, taking turns: the command ``dear-mpi compare``.

All schedules share the model, the buckets and the network, and alternate in short blocks, so that whatever else
the machine does hits them alike. The first iteration of each block fills the pipeline and is not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import Median, median, ratio
from dear_mpi.training.bounds import communication
from dear_mpi.training.config import Config
from dear_mpi.training.job import Job
from dear_mpi.training.report import Timing, describe, timing
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Times

__all__ = ["compare", "turns"]

BLOCK = 3  # counted iterations of one schedule before the next one's turn


def compare(
    config: Config, world: World, schedules: Sequence[str], progress: Callable[[str], object] | None = None
) -> list[dict[str, Any]]:
    """Time each schedule for ``config.iterations`` iterations. Collective.

    Args:
        schedules: names; speed-ups are against the first.
        progress: called after each block with the schedule's name.

    Returns:
        For each schedule what ``train`` reports, and ``median_s``, ``median_low_s``, ``median_high_s`` (95 % interval),
        ``speedup``, ``ci_low``, ``ci_high``, and in words the ``verdict``; ``ideal_speedup`` is that of the bounds at
        the first schedule's compute. ``loss`` has the schedule's own iterations; ``accuracy`` and
        ``params_sha256`` are of the one model that all schedules have trained in turn.

    Raises:
        AgreedError: something in ``config`` is not allowed, or the ranks were asked for different things.
    """
    agree(world.transport, "compare", lambda: check(config))
    with Job(config, world, schedules) as job:
        started = dict.fromkeys(collective for each in job.schedules.values() for collective in each.collectives)
        network = communication(job.fabric, started)
        losses: dict[str, list[float]] = {name: [] for name in schedules}
        blocks: dict[str, list[list[Times]]] = {name: [] for name in schedules}
        for count in turns(config.iterations):
            for name, trainer in job.trainers.items():
                if trainer.first:  # which ends with a flush: the next one has nothing to wait for
                    job.iterate(name, *job.batch(trainer.done))
                done = [job.iterate(name, *job.batch(trainer.done)) for _ in range(1 + count)]
                trainer.flush()
                losses[name].extend(loss for loss, _ in done[1:])
                blocks[name].append([times for _, times in done])
                if progress is not None:
                    progress(name)
        figures = {name: timing(world.transport, each, blocks[name], network) for name, each in job.schedules.items()}
        end = job.outcome()
        return [
            describe(job, name, figures[name])
            | {"iterations": config.iterations, "iteration_s": figures[name].steady_s, "loss": losses[name]}
            | end
            | compared(figures[name], figures[schedules[0]])
            | {"ideal_speedup": ideal_speedup(each, job.schedules[schedules[0]], figures[schedules[0]], network)}
            for name, each in job.schedules.items()
        ]


def check(config: Config) -> dict[str, Any]:
    """See that settings have a meaning for one model that several schedules train in turn.

    Raises:
        ValueError: one has none.
    """
    for name in ("decay", "warmup"):
        if getattr(config, name) != getattr(Config, name):
            raise ValueError(f"{name} does not apply to a comparison, whose schedules train one model in turn")
    return {}


def turns(iterations: int) -> list[int]:
    """Counted iterations of each turn."""
    return [min(BLOCK, iterations - start) for start in range(0, iterations, BLOCK)]


def ideal_speedup(own: type[Schedule], first: type[Schedule], baseline: Timing, network: Mapping[str, float]) -> float:
    """How many times a schedule's bound is better than the first one's, for equal compute."""
    first_s, own_s = (each.bound(baseline.forward_s, baseline.backward_s, network) for each in (first, own))
    return first_s / own_s if own_s else 1.0


def verdict(figures: Timing, baseline: Timing, speedup: Median) -> str:
    """What may be said of a speed-up."""
    if figures is baseline:
        return "baseline"
    if any(middle.high - middle.low > middle.value for middle in (median(figures.steady_s), median(baseline.steady_s))):
        return "too noisy"
    return "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "within noise"


def compared(figures: Timing, baseline: Timing) -> dict[str, float | str]:
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
        "verdict": verdict(figures, baseline, speedup),
    }
