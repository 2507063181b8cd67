"""Train a model from a ``Config`` on one rank, and report it as a JSON object.

The key names are a contract: scripts depend on them. Times are in seconds; iteration times are the slowest rank's.
``compute_s`` and ``exposed_comm_s`` belong to the iteration of median length, on its slowest rank, without the first
iterations of each block, which fill the pipeline. With sync intervals of ``period`` iterations, ``compare`` uses the
mean iteration of the interval of median length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dear_mpi.collectives.program.partition import Partition, chunk_bounds
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.data import Batches
from dear_mpi.models.layer import is_exchanging
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import World
from dear_mpi.training.checkpoint import sha256
from dear_mpi.training.declared import options_of
from dear_mpi.training.log import Times, middle
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.workload import make_workload
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.session import Session


class Job(Session):
    """Train a model from a ``Config``. The constructor is collective.

    Args:
        schedules: names; all trainers share the model and the buckets, and may take turns.

    Raises:
        ArgumentError: something in ``config`` is not allowed here, on this rank or on another one.
        MismatchError: the ranks were asked for different things, or read different data.
    """

    def __init__(self, config: Config, world: World, schedules: Sequence[str]) -> None:
        self.config = config
        self.alike: list[int] = []  # per trainer: the iteration after which ranks were last found equal
        agree(world.transport, "job", lambda: self.prepare(world))
        workload, options = self.workload, config.options()
        super().__init__(workload.layers, workload.loss, world, schedules=schedules, name="job", **options)

    def prepare(self, world: World) -> dict[str, Any]:
        """Make the model and its batches; return the facts that must be equal on all ranks."""
        config = self.config
        self.workload = make_workload(config, world)
        facts = asdict(config) | {"model": self.workload.model}
        self.batches, self.examples_sha256 = None, None
        if self.workload.dataset is not None:
            examples = self.workload.dataset.train
            self.batches = Batches(examples, config.batch, rank=world.rank, size=world.size, seed=config.seed)
            self.examples_sha256 = facts["examples"] = sha256(examples.arrays)  # detects another file on a rank
        return facts

    def batch(self, iteration: int) -> tuple[Array, Array, int]:
        """Return this rank's inputs and targets, and the number of targets in the whole batch."""
        owners = self.group.owners
        self.workload.take(owners.speeds[self.world.rank] * owners.ranks)
        if self.batches is None:
            own = Partition.of(self.config.batch, owners.ranks, owners.weights).shard(self.world.rank)
            nothing = np.zeros(own.stop - own.start)
            return nothing, nothing, 0
        x, targets = self.batches.part(iteration, owners.weights)
        return x, targets, self.config.batch * int(np.prod(targets.shape[1:]))

    def check_alike(self, place: str = "check_alike") -> None:
        """Check once after an iteration: between iterations nothing changes a job's parameters."""
        done = [trainer.done for trainer in self.group.trainers.values()]
        if self.alike != done:
            super().check_alike(place)
            self.alike = done

    def outcome(self) -> dict[str, Any]:
        """Flush and return ``accuracy`` and ``params_sha256``, equal on all ranks. Collective.

        Raises:
            AgreedError: the last iteration went wrong, or a parameter is not finite.
            MismatchError: the parameters differ.
        """
        self.check_alike()
        agree(self.world.transport, "training", self.check_parameters)
        digest = {"params_sha256": self.parameters_sha256()}
        agree(self.world.transport, "training", lambda: digest)
        return {"accuracy": self.accuracy(), **digest}

    def check_parameters(self) -> dict[str, Any]:
        for parameter in self.parameters:
            if not bool(array_module(parameter.value).isfinite(parameter.value).all()):
                what = "is infinite or not a number after the last update"
                raise ValueError(f"parameter {parameter.name} {what}: try a lower learning rate (--lr)")
        return {}

    def accuracy(self) -> float | None:
        """Return the share of test targets that a classifier gets right; each rank tests a part. Collective.

        Returns None if the model is no classifier, or if layers exchange: ranks have unequal parts.
        """
        exchanging = any(is_exchanging(layer) for layer in self.layers)
        if self.workload.dataset is None or not isinstance(self.loss, SoftmaxCrossEntropy) or exchanging:
            return None
        tests = self.workload.dataset.test
        numbers = np.arange(*chunk_bounds(len(tests), self.world.size, self.world.rank))
        right = total = 0
        for start in range(0, len(numbers), 256):
            x, targets = map(self.group.streams.put, tests.take(numbers[start : start + 256]))
            for step in self.group.uses:
                x = step.layer.forward(x)
            right += int((x.argmax(-1) == targets).sum())
            total += targets.size
        counts = self.world.transport.gather_values((right, total))
        return float(np.divide(*np.sum(counts, axis=0)))


@dataclass(frozen=True)
class Timing:
    """Hold times of the iteration of median length, so that they add up; lists cover all iterations."""

    iteration_s: list[float]
    forward_s: float
    backward_s: float
    exposed_comm_s: float
    bound_s: float
    counted_s: list[float] = field(repr=False)  # of iterations, without those that fill the pipeline
    steady_s: list[float] = field(repr=False)  # comparable: counted_s, or means of its sync intervals

    @property
    def rest_s(self) -> float:
        """Return the time that is neither layers nor waiting, such as updates, the loss and packing."""
        known_s = self.forward_s + self.backward_s + self.exposed_comm_s
        return max(0.0, float(np.median(self.steady_s)) - known_s)  # not -1e-17


def timing(
    transport: Transport,
    schedule: type[Schedule],
    blocks: Sequence[Sequence[Times]],
    network: Mapping[str, float],
    *,
    fill: int = 1,
    early: int = 0,
    period: int = 1,
    parts: int = 1,
) -> Timing:
    """Combine the ranks' measurements. Collective.

    Args:
        blocks: series of iterations.
        fill: uncounted iterations at the beginning of each block, which fill the pipeline; the last always counts.
        early: uncounted blocks at the beginning.
        period: iterations of a sync interval, which differ from each other.
        parts: number of parts of a batch.
        network: see ``communication`` in ``training/plan_cost.py``.
    """
    slowest = []
    for ranks in zip(*transport.gather_values(blocks), strict=True):
        times = np.array(ranks)  # (ranks, iterations, times); an iteration's times come from one rank, so they add up
        slowest.append(times[times[:, :, 0].argmax(axis=0), np.arange(times.shape[1])])
    counted = np.concatenate([block[min(fill, len(block) - 1) :] for block in slowest[early:]])
    steady = counted if period == 1 else counted.reshape(-1, period, counted.shape[1]).mean(axis=1)
    # of median length, or the mean of the two in the middle
    _, forward_s, backward_s, exposed_s = middle(steady, (len(steady) - 1) // 2, by=0).tolist()
    return Timing(
        iteration_s=np.concatenate(slowest)[:, 0].tolist(),
        forward_s=forward_s,
        backward_s=backward_s,
        exposed_comm_s=exposed_s,
        bound_s=schedule.least(forward_s, backward_s, network, parts),
        counted_s=counted[:, 0].tolist(),
        steady_s=steady[:, 0].tolist(),
    )


def describe(job: Job, schedule: str, figures: Timing) -> dict[str, Any]:
    """Return the keys that ``train`` and ``compare`` share."""
    config, world = job.config, job.world
    chosen = {name: getattr(config, name) for name, said in options_of(Config).items() if said.reported}
    return {
        "schedule": schedule,
        **chosen,
        "update": "sharded" if job.group.route.update.shard else "full",
        "route": job.group.route.name,
        "period": job.group.route.period,
        "optimizer": str(job.options.optimizer),
        "chosen": job.group.fabric.chosen(job.schedules[schedule].collectives),
        "buckets": len(job.group.buckets),
        "ranks": world.size,
        "weights": job.group.owners.weights,
        "hosts": world.ranks_per_host,
        "emulated_link": None if world.link is None else str(world.link),
        "rates_GBps": None if world.transport.rates is None else [rate * 1e-9 for rate in world.transport.rates],
        "data": None if job.workload.dataset is None else config.data,
        "wire": config.wire_name,
        "unfit": job.group.fabric.tally[False],
        "transport": world.transport.name,
        "iterations": len(figures.iteration_s),
        "iteration_s": figures.iteration_s,
        "compute_s": figures.forward_s + figures.backward_s,
        "exposed_comm_s": figures.exposed_comm_s,
        "bound_s": figures.bound_s,
    }
