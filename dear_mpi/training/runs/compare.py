"""Compare schedules, fusions and wire formats that take turns (``dear-mpi compare``).

Candidates with bit-identical results train one model in turn, others separate models, from the same initial values, for
equally many iterations. Turns have equal length, in whole sync intervals of each candidate:

    period 1     one not counted | 39 counted                                  of 40, where the longest period is 10
    period 10    10 not counted            | 10 counted | 10 counted | 10 counted

Turns are short: other load affects all candidates equally. Uncounted iterations fill the pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import lcm
from statistics import fmean
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.slab import round_up
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES, median, ratio
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.events import KEPT, Times, waits_s
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.events.recorder import Recorder, Show
from dear_mpi.training.fabric.plan_cost import communication, traffic
from dear_mpi.training.fusion import fused
from dear_mpi.training.options import Wire, check_wires, pairs
from dear_mpi.training.routes.route import WAYS
from dear_mpi.training.routes.stages import Collective
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job, Timing, describe, timing
from dear_mpi.training.schedules import find_schedules, own_fusion
from dear_mpi.training.virtual_trainer import predict

BLOCK = 3  # counted iterations, or sync intervals, per turn


class Candidate:
    """Run a schedule with its buckets on a job that others may share. All is collective.

    Attributes:
        policy: the cut of its buckets; for a policy by time or trials, the decided one.
        early: first turns that do not count, until sync intervals look alike.
        figures: of all turns.
    """

    def __init__(self, job: Job, name: str, fusion: str, label: str = "") -> None:
        self.job, self.name, self.fusion, self.label = job, name, fusion, label
        self.schedule, self.trainer = job.schedules[name], job.group.trainers[name]
        self.policy = own_fusion(fusion, self.schedule)
        self.losses, self.blocks = list[float](), list[list[Times]]()
        self.early, self.period = 0, job.group.route.period
        self.waited_s = defaultdict[str, float](float)
        self.profiler = Profiler(job.group, name)

    def settle(self) -> None:
        """Iterate until all is decided, then measure the network's cost."""
        self.enter()
        self.iterate(1)
        while self.job.decisions.due(self.name):
            self.iterate(1)
        self.job.flush()
        self.policy = self.job.decisions.fusion
        fabric, started = self.job.group.fabric, (*self.schedule.collectives, *self.schedule.extras)
        self.network = communication(fabric, started)
        self.chosen = fabric.chosen(self.schedule.collectives)
        self.traffic = traffic(fabric, started)

    def enter(self) -> None:
        """Cut this candidate's buckets."""
        if self.job.decisions.fusion != self.policy:
            self.job.cut(self.policy)

    def iterate(self, count: int, *, counted: bool = False) -> list[tuple[float, Times]]:
        fabric, found = self.job.group.fabric, []
        for _ in range(count):
            found.append(self.job.iterate(self.name, *self.job.batch(self.trainer.done)))
            if counted:
                for collective, seconds in waits_s(fabric.log.last, fabric.seconds).items():
                    self.waited_s[collective] += seconds
                self.profiler.note()
        return found

    def turn(self, count: int) -> None:
        """Run ``count`` counted iterations after a sync interval that fills the pipeline."""
        self.enter()
        counted = self.trainer.done >= self.job.group.route.begin
        first, done = self.iterate(self.period), self.iterate(count, counted=counted)
        self.trainer.flush()
        self.early += not counted
        self.losses += [loss for loss, _ in done if counted]
        self.blocks.append([times for _, times in first + done])

    def timing(self) -> Timing:
        how = {"fill": self.period, "early": self.early, "period": self.period, "parts": self.job.group.passes}
        self.figures = timing(self.job.world.transport, self.schedule, self.blocks, self.network, **how)
        return self.figures

    def predicted_s(self) -> float:
        """Predict the iteration from measured compute and the cost of collectives without compute.

        Updates on the main thread come between the passes, with the rest: they delay collectives, wherever they are.
        """
        group, costs = self.job.group, self.profiler.costs()
        if not group.route.updates_under_way:
            costs = replace(costs, update_s=0.0, rest_s=self.figures.rest_s)
        rules = group.rules(self.name, fused(self.policy, group.layout))
        return predict(self.schedule, rules, costs).iteration_s

    def exposed_s(self) -> dict[str, float]:
        """Return the seconds per iteration that compute waited for each collective, means over ranks."""
        route, own = self.job.group.route, defaultdict[str, float](float)
        for name, seconds in self.waited_s.items():
            if name in WAYS:  # without collectives: waits for those before it
                stages = [stage for stage in route.jobs[name][0] if isinstance(stage, Collective)]
                name = " + ".join(stage.label for stage in stages or route.collectives("all_reduce"))
            own[name] += seconds / len(self.losses)
        ranks: list[dict[str, float]] = self.job.world.transport.gather_values(own)
        names = dict.fromkeys(name for each in ranks for name in each)
        return {name: fmean(each.get(name, 0.0) for each in ranks) for name in names}

    def row(self, first: Candidate) -> dict[str, Any]:
        """Report this candidate, compared with the first one of its fusion."""
        figures, base, parts = self.timing(), first.figures, self.job.group.passes
        network_s = sum(self.network.values())
        hideable_s = min(network_s, (figures.forward_s + figures.backward_s) / parts)
        hidden_s = min(max(0.0, network_s - figures.exposed_comm_s), hideable_s)  # updates may have hidden more
        own_s = self.schedule.least(base.forward_s, base.backward_s, self.network, parts)
        return describe(self.job, self.name, figures, self.chosen) | {
            "iterations": len(figures.counted_s),
            "asked_iterations": self.job.config.iterations,
            "iteration_s": figures.counted_s,
            "loss": self.losses,
            "fusion": self.policy,
            "asked_fusion": self.fusion,
            "sent_bytes": None if self.traffic is None else self.traffic[1],
            "exposed_s": self.exposed_s(),
            "rest_s": figures.rest_s,
            "predicted_s": self.predicted_s(),
            "hidden": hidden_s / hideable_s if hideable_s else None,
            "ideal_speedup": base.bound_s / own_s if own_s else 1.0,
            **compared(figures.steady_s, base.steady_s),
        }


class Comparison:
    """Compare candidates. The constructor and ``run`` are collective, and raise AgreedError.

    Attributes:
        entries: for each candidate its asked fusion, and its settings.
        apart: whether each candidate has a separate job.
        period: iterations after which all candidates end a sync interval.
        steps: number of ``progress`` calls.
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
        self.config, self.world, self.schedules = config, world, tuple(schedules)
        self.fusions, self.wires = tuple(fusions) or (config.fusion,), tuple(wires) or (config.wire,)
        agree(world.transport, "compare", self.enter)

    def enter(self) -> dict[str, Any]:
        """Find the candidates. Raises ValueError if a setting does not apply."""
        for name in ("decay", "warmup"):
            if getattr(self.config, name) != getattr(Config, name):
                raise ValueError(f"{name} does not apply to a comparison, whose turns are no whole run")
        check_distinct("fusion", self.fusions)
        check_wires(self.wires)
        kinds = find_schedules(self.schedules)
        self.entries = [
            (fusion, replace(self.config, schedule=name, wire=wire, fusion=own_fusion(fusion, kinds[name])))
            for fusion in self.fusions
            for wire, name in pairs(self.wires, kinds)
        ]
        routes = [(config, config.find_route()) for _, config in self.entries]
        self.period = lcm(*(route.period for _, route in routes))
        self.apart = self.period > 1 or len({config.wire for config, _ in routes}) > 1
        self.turns = turns(self.config.iterations, self.period)
        self.steps = (1 + len(self.turns)) * len(self.entries)
        last = self.period * len(self.turns) + sum(self.turns[:-1])  # when the last turn begins to count
        for config, route in routes:
            if route.begin > last:
                late = f"the rounds of schedule {config.schedule!r} begin then, and the last turn must count"
                raise ValueError(f"iterations must be more than {self.config.iterations}: {late}")
        return {"schedules": self.schedules, "fusions": self.fusions, "wires": self.wires}

    def called(self, fusion: str, config: Config) -> str:
        wire = f", {config.wire_name}" * (len(self.wires) > 1)
        return f"{config.schedule}{wire}" + f", fusion {fusion}" * (len(self.fusions) > 1)

    def run(
        self, progress: Callable[[str], object] = lambda name: None, *, timeline: Show | None = None
    ) -> list[dict[str, Any]]:
        """Let all candidates take their turns, and report.

        Args:
            progress: called after each turn with the candidate's name.
            timeline: processes the timeline of the last turns, on rank 0.

        Returns:
            For each candidate the keys of ``train``, and these:

            ``median_s``, ``median_low_s``, ``median_high_s`` (95 % interval): per iteration, or sync interval.
            ``speedup``, ``ci_low``, ``ci_high``, ``verdict`` (in words): over the first candidate with the same fusion.
            ``ideal_speedup``: of the bounds, at the first candidate's compute.
            ``rest_s``: neither compute nor waiting (updates, the loss, packing).
            ``exposed_s``: seconds per collective that compute waited for.
            ``hidden``: share of the communication that compute could hide, if any.
            ``sent_bytes``: per iteration, of the rank that sends most; None if plans are no programs of messages.
            ``predicted_s``: from the virtual fabric.
        """
        with ExitStack() as stack:
            recorder = None if timeline is None else Recorder(self.world, timeline)
            candidates, world = list[Candidate](), self.world
            for fusion, config in self.entries:
                if self.apart or not candidates:
                    schedules = [config.schedule] if self.apart else self.schedules
                    job = stack.enter_context(Job(config, world, schedules))
                    world = job.world  # the first job has chosen and reported how ranks wait
                candidates.append(Candidate(job, config.schedule, fusion, self.called(fusion, config)))
            jobs = [*{each.job: each for each in candidates}.values()]  # a candidate of each
            for each in awake(candidates):
                each.settle()
                progress(f"{each.label}, first iterations")
            if self.apart:
                done = round_up(max(each.trainer.done for each in candidates), self.period)
                for each in awake(candidates):
                    each.iterate(done - each.trainer.done)
                    each.job.flush()
            for turn, count in enumerate(self.turns):
                for each in awake(candidates):
                    each.turn(count + self.period - each.period)
                    if recorder is not None and turn == len(self.turns) - 1:
                        recorder.keep(each.job, each.label, kept=min(count, KEPT))
                    progress(each.label)
            ends = {each.job: each.job.outcome() for each in awake(jobs)}
            firsts = {each.fusion: each for each in reversed(candidates)}
            rows = [each.row(firsts[each.fusion]) | ends[each.job] for each in awake(candidates)]
            if recorder is not None:
                recorder.show(rows)
            return rows


def awake(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates, each active on its stream."""
    for each in candidates:
        with each.job.group.streams.compute.use():
            yield each


def turns(iterations: int, period: int = 1) -> list[int]:
    """Return the counted iterations of each turn, in whole sync intervals; the last turn, in timelines, is full.

    >>> turns(7), turns(35, 10)
    ([1, 3, 3], [10, 30])
    """
    intervals = -(-iterations // period)
    return [period * min(BLOCK, intervals - start) for start in range(0, intervals, BLOCK)][::-1]


def compared(samples: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """Return median, speed-up over the baseline and verdict, from ordered seconds."""
    middle, speedup = median(samples), ratio(baseline, samples)
    low, high = round(speedup.low, 3), round(speedup.high, 3)  # as tables print them
    if samples is baseline:
        verdict = "baseline"
    elif any(median(each).is_noisy for each in (samples, baseline)):
        verdict = "too noisy"
    elif min(len(samples), len(baseline)) < FEWEST_SAMPLES:
        verdict = "cannot tell"
    else:
        verdict = "faster" if low > 1 else "slower" if high < 1 else "cannot tell"
    return {
        "median_s": middle.value,
        "median_low_s": middle.low,
        "median_high_s": middle.high,
        "speedup": speedup.value,
        "ci_low": speedup.low,
        "ci_high": speedup.high,
        "verdict": verdict,
    }
