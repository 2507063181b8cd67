"""A contestant of a comparison: a schedule with its buckets, on a job that it shares with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import fmean

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.training.costs.plan_cost import communication, plan_s, traffic
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.log.times import Times, pass_s, waits_s
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.report import Timing, timing
from dear_mpi.training.schedules import Schedule, own_fusion
from dear_mpi.training.virtual_trainer import Costs, VirtualTrainer


class Contestant:
    """Collective, as all of its methods are.

    Args:
        fusion: a policy; ``own`` is the policy of the schedule's source.

    Attributes:
        policy: where its buckets are cut; where a policy by time or trials decides that, what it decided.
        loss_s: seconds of the sum of the loss.
        network: seconds of each collective that it starts, for all of its buckets.
        chosen: the algorithm of each of its buckets.
        traffic: messages and bytes that a rank sends in an iteration, if programs of messages say it.
    """

    def __init__(self, job: Job, name: str, fusion: str) -> None:
        self.job, self.name, self.fusion = job, name, fusion
        self.schedule: type[Schedule] = job.schedules[name]
        self.policy = own_fusion(fusion, self.schedule)
        self.losses: list[float] = []
        self.blocks: list[list[Times]] = []
        self.waits_s: list[Mapping[str, float]] = []
        self.pass_s: list[Array] = []

    def settle(self) -> None:
        """Iterate until all is decided that depends on times, and see what the network needs."""
        self.enter()
        self.iterate(1)
        while self.name in self.job.decisions.waiting or not self.job.decisions.tuning.over:
            self.iterate(1)
        self.job.flush()
        self.policy = self.job.decisions.fusion
        fabric, started = self.job.group.fabric, (*self.schedule.collectives, *self.schedule.extras)
        self.network: Mapping[str, float] = communication(fabric, started)
        self.chosen = fabric.chosen(self.schedule.collectives)
        self.traffic = traffic(fabric, started)
        self.loss_s = plan_s(fabric, self.job.group.meter.plan)
        self.price = self.job.group.prices.of(started)

    def enter(self) -> None:
        """Cut the buckets as this one needs them."""
        if self.job.decisions.fusion != self.policy:
            self.job.cut(self.policy)

    def iterate(self, count: int) -> list[tuple[float, Times]]:
        """So many iterations: the loss and the times of each."""
        trainer, fabric = self.job.group.trainers[self.name], self.job.group.fabric
        found = []
        for _ in range(count):
            found.append(self.job.iterate(self.name, *self.job.batch(trainer.done)))
            self.waits_s.append(waits_s(fabric.log.last, fabric.seconds))
            self.pass_s.append(pass_s(fabric.log.last, fabric.seconds, len(self.job.group.uses)))
        return found

    def turn(self, count: int) -> None:
        """So many iterations that count, after one that fills the pipeline."""
        self.enter()
        if not self.blocks:
            self.waits_s, self.pass_s = [], []  # without the first iterations
        done = self.iterate(1 + count)
        del self.waits_s[-1 - count], self.pass_s[-1 - count]
        self.job.group.trainers[self.name].flush()
        self.losses += [loss for loss, _ in done[1:]]
        self.blocks.append([times for _, times in done])

    def timing(self) -> Timing:
        """The figures of all turns."""
        parts = self.job.options.accumulate
        return timing(self.job.world.transport, self.schedule, self.blocks, self.network, parts=parts)

    def predicted_s(self, figures: Timing) -> float:
        """What the virtual fabric makes of the compute that was measured, and of what collectives cost alone.

        The compute is from the rank that computes longest; what is neither compute nor waiting, as updates, comes
        between the passes. What is not in it: sharded updates, which hold the wire up.
        """
        job = self.job
        ranks: list[Array] = job.world.transport.gather_values(np.mean(self.pass_s, axis=0))
        forward_s, backward_s = max(ranks, key=np.sum).tolist()
        costs = Costs(
            forward_s=forward_s,
            backward_s=backward_s,
            price=self.price,
            parts=job.options.accumulate,
            loss_s=self.loss_s,
            verdict_s=self.loss_s,
            rest_s=figures.rest_s,
            ranks=job.world.size,
            portions=job.group.fabric.portions,
        )
        rules = job.group.rules(self.name, fused(self.policy, job.group.layout))
        return VirtualTrainer(self.schedule, rules, costs).mean_s()

    def exposed_s(self) -> dict[str, float]:
        """The seconds of an iteration for which compute has waited for each collective, means over ranks."""
        totals = Counter[str]()
        for waits in self.waits_s:
            totals.update(waits)
        own = {name: seconds / len(self.waits_s) for name, seconds in totals.items()}
        ranks: list[dict[str, float]] = self.job.world.transport.gather_values(own)
        names = dict.fromkeys(name for each in ranks for name in each)
        return {name: fmean(each.get(name, 0.0) for each in ranks) for name in names}
