"""Compare schedules, fusions and wires, which take turns: the command ``dear-mpi compare``."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, median, ratio
from dear_mpi.training.recorder import Recorder, Show
from dear_mpi.training.runs.contest import Contest, Progress, awake
from dear_mpi.training.runs.contestant import Contestant
from dear_mpi.training.runs.report import describe

NEAR = 0.01  # below the accuracy that is to be reached


def outcome(
    contest: Contest, progress: Progress = lambda name: None, *, timeline: Show | None = None
) -> list[dict[str, Any]]:
    """Collective: hold a contest, and report.

    Args:
        progress: called after each turn, with who had it.
        timeline: what rank 0 does with the timeline of each one's last block.

    Returns:
        For each contestant what ``train`` reports, and ``median_s``, ``median_low_s``, ``median_high_s`` (95 %
        interval), ``speedup``, ``ci_low``, ``ci_high`` over the first one with the same fusion, and in words the
        ``verdict``; where a route has rounds of ``period`` iterations, these are of rounds, for each of their
        iterations. ``ideal_speedup`` is the speed-up of the bounds at the first one's compute; ``rest_s`` is what of an
        iteration is neither compute nor waiting (updates, the loss, packing); ``network_s`` and ``exposed_s`` are
        seconds of each collective, in all and waited for; ``hidden`` is the share that was hidden of what compute could
        hide, None if that is nothing; ``sent_messages`` and ``sent_bytes`` are of the rank that sends most in an
        iteration, None where plans are no programs of messages; ``predicted_s`` is what the virtual fabric says.
        ``loss`` has the schedule's own iterations. ``accuracy`` and ``params_sha256`` are of the one model that all
        have trained in turn, or of each one's own: then ``accuracy_at_time`` is what it had when the fastest with the
        same fusion had done as many iterations, and ``time_to_accuracy_s`` the seconds of iterations until it first had
        ``NEAR`` less than the first one has at the end; None if that has never been.

    Raises:
        AgreedError: what only a job finds out is not allowed.
    """
    with ExitStack() as stack:
        recorder = None if timeline is None else Recorder(contest.world, timeline, contest.config.model)
        contestants = contest.contestants(stack)
        contest.run(contestants, progress, recorder)
        for each in awake(contestants):
            each.timing()
        jobs = dict.fromkeys(each.job for each in contestants)
        ends = {job: job.outcome() for job in jobs}
        rows = []
        for each in awake(contestants):
            alike = [other for other in contestants if other.fusion == each.fusion]
            rows.append(row_of(each, alike[0]) | ends[each.job] | reached(each, alike))
        if recorder is not None:
            recorder.show(rows)
        return rows


def reached(own: Contestant, others: Sequence[Contestant]) -> dict[str, Any]:
    """What a contestant had reached beside others, itself among them, of which the first says what is wanted."""
    course, found = own.course(), [course for each in others if (course := each.course()) is not None]
    if course is None:
        return {"accuracy_at_time": None, "time_to_accuracy_s": None}
    return {
        "accuracy_at_time": course.at(min(each.seconds[-1] for each in found)),
        "time_to_accuracy_s": course.until(found[0].accuracy[-1] - NEAR),
    }


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
        "iterations": len(figures.counted_s),
        "asked_iterations": own.job.config.iterations,
        "iteration_s": figures.counted_s,
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


def verdict(samples: Sequence[float], baseline: Sequence[float], speedup: Median) -> str:
    if samples is baseline:
        return "baseline"
    if any(median(each).is_noisy for each in (samples, baseline)):
        return "too noisy"
    if min(len(samples), len(baseline)) < FEWEST_SAMPLES:
        return "cannot tell"
    low, high = round(speedup.low, 3), round(speedup.high, 3)  # as tables print them
    return "faster" if low > 1 else "slower" if high < 1 else "cannot tell"


def compared(samples: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """Median and speed-up over the baseline, with intervals, from seconds of iterations or rounds in their order."""
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
