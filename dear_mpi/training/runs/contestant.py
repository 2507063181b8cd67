"""Run a candidate of a comparison: a schedule with its buckets, on a job that others may share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

import numpy as np

from dear_mpi.training.fusion import fused
from dear_mpi.training.log import Times, waits_s
from dear_mpi.training.plan_cost import communication, traffic
from dear_mpi.training.profiler import Profiler
from dear_mpi.training.routes.legs import Collective, Leg
from dear_mpi.training.routes.route import WAYS, Route
from dear_mpi.training.runs.job import Job, Timing, timing
from dear_mpi.training.schedules import Schedule, own_fusion
from dear_mpi.training.virtual_trainer import predict


@dataclass(frozen=True)
class Course:
    """Hold test accuracies between turns, and the seconds of the iterations before each.

    >>> course = Course(seconds=(1.0, 2.0, 3.0), accuracy=(0.5, 0.8, 0.9))
    >>> course.at(2.5), course.at(0.5), course.until(0.75), course.until(0.95)
    (0.8, None, 2.0, None)
    """

    seconds: tuple[float, ...]
    accuracy: tuple[float, ...]

    def at(self, seconds: float) -> float | None:
        """Return the last accuracy known after ``seconds``; None before the first."""
        known = [found for when, found in zip(self.seconds, self.accuracy, strict=True) if when <= seconds]
        return known[-1] if known else None

    def until(self, wanted: float) -> float | None:
        """Return the seconds until the accuracy first reached ``wanted``; None if never."""
        return next((when for when, found in zip(self.seconds, self.accuracy, strict=True) if found >= wanted), None)


class Contestant:
    """Run a candidate. The constructor and all methods are collective.

    Args:
        fusion: a policy, or ``own``.

    Attributes:
        policy: the cut of its buckets; for a policy by time or trials, the decided one.
        network, traffic: see ``communication`` and ``traffic`` in ``training/plan_cost.py``.
        chosen: the algorithm of each bucket.
        figures: of all turns, when they are over.
        accuracy: one entry per test.
        early: first turns that do not count, until sync intervals look alike.
    """

    def __init__(self, job: Job, name: str, fusion: str) -> None:
        self.job, self.name, self.fusion = job, name, fusion
        self.schedule: type[Schedule] = job.schedules[name]
        self.policy = own_fusion(fusion, self.schedule)
        self.losses: list[float] = []
        self.blocks: list[list[Times]] = []
        self.accuracy: list[float] = []
        self.early, self.period = 0, job.group.route.period
        self.waited_s: dict[str, float] = defaultdict(float)
        self.profiler = Profiler(job.group, name)

    def settle(self) -> None:
        """Iterate until all time-based decisions are made, then measure the network's cost."""
        self.enter()
        self.iterate(1)
        decisions = self.job.decisions
        while decisions.undecided(self.name):
            self.iterate(1)
        self.job.flush()
        self.policy = decisions.fusion
        fabric, started = self.job.group.fabric, (*self.schedule.collectives, *self.schedule.extras)
        self.network: Mapping[str, float] = communication(fabric, started)
        self.chosen = fabric.chosen(self.schedule.collectives)
        self.traffic = traffic(fabric, started)

    def enter(self) -> None:
        """Cut the buckets of this candidate."""
        if self.job.decisions.fusion != self.policy:
            self.job.cut(self.policy)

    def iterate(self, count: int, *, counted: bool = False) -> list[tuple[float, Times]]:
        """Run iterations; return the loss and the times of each."""
        trainer, fabric = self.job.group.trainers[self.name], self.job.group.fabric
        found = []
        for _ in range(count):
            found.append(self.job.iterate(self.name, *self.job.batch(trainer.done)))
            if counted:
                for collective, seconds in waits_s(fabric.log.last, fabric.seconds).items():
                    self.waited_s[collective] += seconds
                self.profiler.note()
        return found

    @property
    def done(self) -> int:
        return self.job.group.trainers[self.name].done

    def start(self, done: int) -> None:
        """Iterate without counting until ``done`` iterations are done; then test."""
        self.iterate(done - self.done)
        self.first = done
        self.test()

    def test(self) -> None:
        """Test the model. If sync intervals overlap, each rank tests its values: ending the intervals would change
        training."""
        self.job.flush()
        found = self.job.accuracy()
        self.accuracy += [] if found is None else [found]

    def turn(self, count: int) -> None:
        """Run ``count`` counted iterations after a sync interval (or one iteration) that fills the pipeline."""
        self.enter()
        counted = self.done >= self.job.group.route.begin
        first, done = self.iterate(self.period), self.iterate(count, counted=counted)
        self.job.group.trainers[self.name].flush()
        self.early += not counted
        self.losses += [loss for loss, _ in done if counted]
        self.blocks.append([times for _, times in first + done])

    def course(self) -> Course | None:
        """Return its accuracies by time, if it was tested after each turn."""
        if not self.accuracy:
            return None
        lengths = list(map(len, self.blocks))
        seconds = seconds_of(self.figures.iteration_s, lengths, self.period, self.first)
        return Course(seconds, tuple(self.accuracy))

    def timing(self) -> Timing:
        how = {"fill": self.period, "early": self.early, "period": self.period, "parts": self.job.options.accumulate}
        self.figures = timing(self.job.world.transport, self.schedule, self.blocks, self.network, **how)
        return self.figures

    def predicted_s(self) -> float:
        """Predict the iteration from measured compute and the cost of collectives without compute.

        Updates on the main thread come between the passes, with all that is neither compute nor waiting: they delay a
        concurrent collective, so their place makes no difference.
        """
        group = self.job.group
        costs = self.profiler.costs()
        if not group.route.updates_under_way:
            costs = replace(costs, update_s=0.0, rest_s=self.figures.rest_s)
        rules = group.rules(self.name, fused(self.policy, group.layout))
        return predict(self.schedule, rules, costs).iteration_s

    def network_s(self) -> dict[str, float]:
        """Return the total seconds of each collective on the network."""
        route, found = self.job.group.route, defaultdict[str, float](float)
        for name, seconds in self.network.items():
            found[labels(route, route.collectives(name))] += seconds
        return found

    def exposed_s(self) -> dict[str, float]:
        """Return the seconds per iteration that compute waited for each collective, means over ranks."""
        route, own = self.job.group.route, defaultdict[str, float](float)
        for name, seconds in self.waited_s.items():
            own[labels(route, route.jobs[name][0]) if name in WAYS else name] += seconds / len(self.losses)
        ranks: list[dict[str, float]] = self.job.world.transport.gather_values(own)
        names = dict.fromkeys(name for each in ranks for name in each)
        return {name: fmean(each.get(name, 0.0) for each in ranks) for name in names}


def labels(route: Route, legs: Sequence[Leg]) -> str:
    """Name the collectives among some stages; for stages without any, the collectives before them."""
    found = [leg for leg in legs if isinstance(leg, Collective)] or route.collectives("all_reduce")
    return " + ".join(leg.label for leg in found)


def seconds_of(iteration_s: Sequence[float], lengths: Sequence[int], fill: int, first: int) -> tuple[float, ...]:
    """Return the seconds of all iterations before the first turn, and after each turn.

    All iterations of a turn count with the mean of the counted ones, because those that fill the pipeline are shorter;
    iterations before the first turn count with their measured times.

    Args:
        iteration_s: of all turns, one after the other.
        lengths: iterations of each turn, including ``fill`` uncounted ones.
        first: iterations before the first turn.

    >>> seconds_of([1.0, 2.0, 2.0, 1.0, 4.0, 4.0], [3, 3], fill=1, first=2)
    (4.0, 10.0, 22.0)
    """
    ends = list(accumulate(lengths))
    each_s = [float(np.mean(iteration_s[end - length + fill : end])) for end, length in zip(ends, lengths, strict=True)]
    turns_s = [length * seconds for length, seconds in zip(lengths, each_s, strict=True)]
    return tuple(accumulate([first * each_s[0], *turns_s]))
