"""Run several schedules on one job, taking turns: the command ``dear-mpi compare``.

All schedules share the model and the network, and, with each fusion that was asked for, the buckets. They alternate
in short blocks, so that whatever else the machine does hits them alike. The first iteration of each block fills the
pipeline and is not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, median, ratio
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.fusion.policies import in_bytes
from dear_mpi.training.log.spans import Run
from dear_mpi.training.recording import Show, recorded, show_runs
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.contestant import Contestant
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.report import describe
from dear_mpi.training.schedules import find_schedules, own_fusion

BLOCK = 3  # counted iterations of one schedule before the next one's turn


def compare(
    config: Config,
    world: World,
    schedules: Sequence[str],
    progress: Callable[[str], object] | None = None,
    *,
    fusions: Sequence[str] = (),
    timeline: Show | None = None,
) -> list[dict[str, Any]]:
    """Time each schedule for ``config.iterations`` iterations with each fusion. Collective.

    Args:
        schedules: names; speed-ups are over the first one, with the same fusion.
        progress: called after each block with the schedule's name.
        timeline: what rank 0 does with the timeline of each one's last block.
        fusions: policies; the policy of ``config`` if none are given. ``own`` is what each schedule's source takes.

    Returns:
        For each fusion and schedule what ``train`` reports, and ``median_s``, ``median_low_s``, ``median_high_s`` (95 %
        interval), ``speedup``, ``ci_low``, ``ci_high``, and in words the ``verdict``; ``ideal_speedup`` is the speed-up
        of the bounds at the first schedule's compute; ``rest_s`` is what of an iteration is neither compute nor waiting
        (updates, the loss, packing); ``network_s`` and ``exposed_s`` are seconds of each collective, in all and waited
        for; ``hidden`` is the share that was hidden of what compute could hide, None if that is nothing;
        ``sent_messages`` and ``sent_bytes`` are of the rank that sends most in an iteration, None where plans are no
        programs of messages; ``predicted_s`` is what the virtual fabric says. ``loss`` has the schedule's own
        iterations; ``accuracy`` and ``params_sha256`` are of the one model that all have trained in turn.

    Raises:
        AgreedError: something in ``config`` is not allowed, or the ranks were asked for different things.
    """
    fusions = fusions or (config.fusion,)
    agree(world.transport, "compare", lambda: check(config, schedules, fusions))
    start = replace(config, fusion=own_fusion(fusions[0], find_schedules(schedules)[schedules[0]]))
    with Job(start, world, schedules) as job:
        contestants = {(fusion, name): Contestant(job, name, fusion) for fusion in fusions for name in schedules}
        for each in contestants.values():
            each.settle()
            if progress is not None:
                progress(f"{each.name}, first iterations")
        runs: list[Run] = []
        counts = turns(config.iterations)
        for turn, count in enumerate(counts):
            shown = timeline is not None and turn == len(counts) - 1
            for each in contestants.values():
                name = each.name if len(fusions) == 1 else f"{each.name}, fusion {each.fusion}"
                each.turn(count)
                if shown:
                    runs.append(recorded(job, name, kept=count))
                if progress is not None:
                    progress(each.name)
        for each in contestants.values():
            each.timing()
        end = job.outcome()
        rows = [row_of(each, contestants[fusion, schedules[0]]) | end for (fusion, _), each in contestants.items()]
        if timeline is not None:
            show_runs(job, runs, rows, timeline)
        return rows


def row_of(own: Contestant, first: Contestant) -> dict[str, Any]:
    """Collective: what is reported of one contestant, beside the first one with the same fusion."""
    figures, base, parts = own.figures, first.figures, own.job.options.accumulate
    messages, nbytes = own.traffic or (None, None)
    network_s = sum(own.network.values())
    hideable_s = min(network_s, (figures.forward_s + figures.backward_s) / parts)
    hidden_s = min(max(0.0, network_s - figures.exposed_comm_s), hideable_s)  # updates may have hidden more
    first_s, own_s = (
        each.schedule.least(base.forward_s, base.backward_s, each.network, parts) for each in (first, own)
    )
    return describe(own.job, own.name, figures) | {
        "iterations": len(figures.steady_s),
        "iteration_s": figures.steady_s,
        "loss": own.losses,
        "fusion": own.policy,
        "asked_fusion": own.fusion,
        "buckets": len(own.chosen),
        "chosen": own.chosen,
        "sent_messages": messages,
        "sent_bytes": nbytes,
        "network_s": own.network_s(),
        "exposed_s": own.exposed_s(),
        "rest_s": figures.rest_s,
        "predicted_s": own.predicted_s(),
        "hidden": hidden_s / hideable_s if hideable_s else None,
        "ideal_speedup": first_s / own_s if own_s else 1.0,
        **compared(figures.steady_s, base.steady_s),
    }


def check(config: Config, schedules: Sequence[str], fusions: Sequence[str]) -> dict[str, Any]:
    """See that settings have a meaning for one model that several schedules train in turn; else ValueError."""
    for name in ("decay", "warmup"):
        if getattr(config, name) != getattr(Config, name):
            raise ValueError(f"{name} does not apply to a comparison, whose schedules train one model in turn")
    check_distinct("fusion", fusions, in_bytes)
    find_schedules(schedules)
    route = config.find_route()
    if route.period > 1:
        what = f"has rounds of {route.period} iterations, and a comparison is of iterations that are alike"
        raise ValueError(f"route {route.name!r} {what}: use train, or simulate")
    return {"fusions": tuple(fusions)}


def turns(iterations: int) -> list[int]:
    """Counted iterations of each turn; a short one comes first, since a timeline shows the last.

    >>> turns(7)
    [1, 3, 3]
    """
    return [min(BLOCK, iterations - start) for start in range(0, iterations, BLOCK)][::-1]


def verdict(samples: Sequence[float], baseline: Sequence[float], speedup: Median) -> str:
    """What may be said of a speed-up."""
    if samples is baseline:
        return "baseline"
    if any(median(each).is_noisy for each in (samples, baseline)):
        return "too noisy"
    if min(len(samples), len(baseline)) < FEWEST_SAMPLES:
        return "cannot tell"
    return "faster" if speedup.low > 1 else "slower" if speedup.high < 1 else "cannot tell"


def compared(samples: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """Median and speed-up over the baseline, with intervals, from the seconds of iterations in their order."""
    middle = median(samples)
    speedup = ratio(baseline, samples)
    return {
        "median_s": middle.value,
        "median_low_s": middle.low,
        "median_high_s": middle.high,
        "speedup": speedup.value,
        "ci_low": speedup.low,
        "ci_high": speedup.high,
        "verdict": verdict(samples, baseline, speedup),
    }
