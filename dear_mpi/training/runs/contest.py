"""Compare schedules, fusions and wire formats that take turns: the candidates, their jobs and turns (``dear-mpi
compare``).

Candidates with bit-identical results train one model in turn. If wire formats or sync intervals lead to different
results, each candidate trains a separate model from the same initial values; all do equally many iterations, and are
tested between turns, outside the timing. Turns have equal length and whole sync intervals of each candidate, so that no
test ends an interval:

    period 1     one not counted | 39 counted                                  of 40, where the longest round is of 10
    period 10    10 not counted            | 10 counted | 10 counted | 10 counted

Turns are short, so that other load on the machine affects all candidates equally. Uncounted iterations fill the
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.slab import round_up
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES, Median, median, ratio
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.chosen_route import Wire, check_wires, pairs
from dear_mpi.training.log import KEPT
from dear_mpi.training.recorder import Recorder, Show
from dear_mpi.training.routes.route import Route
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.contestant import Contestant
from dear_mpi.training.runs.job import Job, describe
from dear_mpi.training.schedules import find_schedules, own_fusion

BLOCK = 3  # counted iterations, or sync intervals, per turn
Progress = Callable[[str], object]


@dataclass(frozen=True)
class Entry:
    """Name a candidate: a schedule with a fusion and a wire format."""

    fusion: str
    wire: Wire
    name: str  # of the schedule
    config: Config  # the settings of its job, if it has a separate one
    route: Route


class Contest:
    """Hold a comparison. The constructor and ``contestants`` are collective.

    Args:
        fusions, wires: default to the ones in ``config``.

    Attributes:
        apart: whether each candidate has a separate job.
        period: iterations after which all candidates end a sync interval.

    Raises:
        AgreedError: something is not allowed, or the ranks were asked for different things.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        schedules: Sequence[str],
        *,
        fusions: Sequence[str] = (),
        wires: Sequence[Wire] = (),
    ) -> None:
        self.config, self.world, self.schedules = config, world, schedules
        self.fusions, self.wires = fusions or (config.fusion,), wires or (config.wire,)
        agree(world.transport, "compare", self.enter)

    def enter(self) -> dict[str, Any]:
        """Find the candidates. Raises ValueError if settings have no meaning for a comparison."""
        for name in ("decay", "warmup"):
            if getattr(self.config, name) != getattr(Config, name):
                raise ValueError(f"{name} does not apply to a comparison, whose turns are no whole run")
        check_distinct("fusion", self.fusions)
        check_wires(self.wires)
        kinds = find_schedules(self.schedules)
        self.entries = []
        for fusion in self.fusions:
            for wire, name in pairs(self.wires, kinds):
                own = replace(self.config, schedule=name, wire=wire, fusion=own_fusion(fusion, kinds[name]))
                self.entries.append(Entry(fusion, wire, name, own, own.find_route()))
        self.period = lcm(*(each.route.period for each in self.entries))
        self.apart = self.period > 1 or len({each.wire for each in self.entries}) > 1
        self.turns = turns(self.config.iterations, self.period)
        last = self.period * len(self.turns) + sum(self.turns[:-1])  # when the last turn begins to count
        for each in self.entries:
            if last < each.route.begin:
                rounds = f"the rounds of schedule {each.name!r} begin after {each.route.begin} iterations"
                what = f"iterations must be more than {self.config.iterations}: {rounds}"
                raise ValueError(f"{what}, and none of them would count")
        return {"schedules": tuple(self.schedules), "fusions": tuple(self.fusions), "wires": tuple(self.wires)}

    @property
    def steps(self) -> int:
        """Return the number of ``progress`` calls."""
        return (1 + len(self.turns)) * len(self.entries)

    def called(self, entry: Entry) -> str:
        """Return the label that distinguishes a candidate."""
        wire = f", {entry.wire or entry.config.wire_name}" * (len(self.wires) > 1)
        return f"{entry.name}{wire}" + f", fusion {entry.fusion}" * (len(self.fusions) > 1)

    def contestants(self, stack: ExitStack) -> list[Contestant]:
        """Make a candidate for each entry, on jobs that end with the stack."""
        found, world = list[Contestant](), self.world
        for each in self.entries:
            if self.apart or not found:
                job = stack.enter_context(Job(each.config, world, [each.name] if self.apart else self.schedules))
                world = job.world  # the first job has chosen and reported how ranks wait
            found.append(Contestant(job, each.name, each.fusion))
        return found

    def run(self, contestants: Sequence[Contestant], progress: Progress, recorder: Recorder | None = None) -> None:
        """Let all candidates take their turns; a recorder keeps the last turn of each. Collective."""
        names = list(map(self.called, self.entries))
        for name, each in zip(names, awake(contestants), strict=True):
            each.settle()
            progress(f"{name}, first iterations")
        if self.apart:
            done = round_up(max(each.done for each in contestants), self.period)
            for each in awake(contestants):
                each.start(done)
        for turn, count in enumerate(self.turns):
            for name, each in zip(names, awake(contestants), strict=True):
                each.turn(count + self.period - each.period)
                if recorder is not None and turn == len(self.turns) - 1:
                    recorder.keep(each.job, name, kept=min(count, KEPT))
                if self.apart:
                    each.test()
                progress(name)


def awake(contestants: Sequence[Contestant]) -> Iterator[Contestant]:
    """Yield the candidates one by one, each active on its stream."""
    for each in contestants:
        with each.job.group.streams.compute.use():
            yield each


def turns(iterations: int, period: int = 1) -> list[int]:
    """Return the counted iterations of each turn, in whole sync intervals.

    A short turn comes first, because a timeline shows the last one.

    >>> turns(7), turns(35, 10)
    ([1, 3, 3], [10, 30])
    """
    rounds = -(-iterations // period)
    return [period * min(BLOCK, rounds - start) for start in range(0, rounds, BLOCK)][::-1]


NEAR = 0.01  # below the target accuracy


def outcome(
    contest: Contest, progress: Progress = lambda name: None, *, timeline: Show | None = None
) -> list[dict[str, Any]]:
    """Hold a comparison, and report. Collective.

    Args:
        progress: called after each turn with the candidate's name.
        timeline: processes the timeline of each candidate's last block, on rank 0.

    Returns:
        For each candidate the keys of ``train``, and these:

        ``median_s``, ``median_low_s``, ``median_high_s`` (95 % interval): per iteration; of whole sync intervals with
        ``period``.
        ``speedup``, ``ci_low``, ``ci_high``, ``verdict`` (in words): over the first candidate with the same fusion.
        ``ideal_speedup``: of the bounds, at the first candidate's compute.
        ``rest_s``: neither compute nor waiting (updates, the loss, packing).
        ``network_s``, ``exposed_s``: seconds per collective, in total and waited for.
        ``hidden``: share of the communication that compute could hide; None if that is nothing.
        ``sent_messages``, ``sent_bytes``: per iteration, of the rank that sends most; None if plans are no programs of
        messages.
        ``predicted_s``: from the virtual fabric.
        ``loss``: of the schedule's iterations.
        ``accuracy``, ``params_sha256``: of the shared model, or of each candidate's model. In the second case also:
        ``accuracy_at_time``: when the fastest candidate with the same fusion had done as many iterations.
        ``time_to_accuracy_s``: seconds of iterations until within ``NEAR`` of the first one's final accuracy; None if
        never.

    Raises:
        AgreedError: the job refuses a setting.
    """
    with ExitStack() as stack:
        recorder = None if timeline is None else Recorder(contest.world, timeline)
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
    """Compare a candidate's accuracy with others, including itself; the first one sets the target."""
    course, found = own.course(), [course for each in others if (course := each.course()) is not None]
    if course is None:
        return {"accuracy_at_time": None, "time_to_accuracy_s": None}
    return {
        "accuracy_at_time": course.at(min(each.seconds[-1] for each in found)),
        "time_to_accuracy_s": course.until(found[0].accuracy[-1] - NEAR),
    }


def row_of(own: Contestant, first: Contestant) -> dict[str, Any]:
    """Report one candidate, compared with the first one of the same fusion. Collective."""
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
    """Return median and speed-up over the baseline, with intervals, from ordered seconds of iterations or sync
    intervals."""
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
