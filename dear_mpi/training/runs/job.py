"""A training job on one rank: a session whose model and data come from a ``Config``, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from dear_mpi.collectives.program.partition import Partition, chunk_bounds
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.data import Batches
from dear_mpi.models.layer import is_exchanging
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import World
from dear_mpi.training.facts import sha256
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.workload import make_workload
from dear_mpi.training.session import Session


class Job(Session):
    """Constructing is collective.

    Args:
        schedules: names; all trainers share the model and the buckets, and may take turns.

    Raises:
        ArgumentError: something in ``config`` is not allowed here, on this rank or on another one.
        MismatchError: the ranks were asked for different things, or read different data.
    """

    def __init__(self, config: Config, world: World, schedules: Sequence[str]) -> None:
        self.config = config
        self.alike: list[int] = []  # iterations of each trainer, after which the ranks were alike
        agree(world.transport, "job", lambda: self.prepare(world))
        workload, options = self.workload, config.options()
        super().__init__(workload.layers, workload.loss, world, schedules=schedules, name="job", **options)

    def prepare(self, world: World) -> dict[str, Any]:
        """Make the model and its batches; return what must be equal on all ranks."""
        config = self.config
        self.workload = make_workload(config, world)
        facts = asdict(config) | {"model": self.workload.model}
        self.batches, self.examples_sha256 = None, None
        if self.workload.dataset is not None:
            examples = self.workload.dataset.train
            self.batches = Batches(examples, config.batch, rank=world.rank, size=world.size, seed=config.seed)
            self.examples_sha256 = facts["examples"] = sha256(examples.arrays)  # another file on a rank is noticed
        return facts

    def batch(self, iteration: int) -> tuple[Array, Array, int]:
        """This rank's inputs and targets, and the number of targets in the whole batch."""
        owners = self.group.owners
        self.workload.take(owners.speeds[self.world.rank] * owners.ranks)
        if self.batches is None:
            own = Partition.of(self.config.batch, owners.ranks, owners.weights).shard(self.world.rank)
            nothing = np.zeros(own.stop - own.start)
            return nothing, nothing, 0
        x, targets = self.batches.part(iteration, owners.weights)
        return x, targets, self.config.batch * int(np.prod(targets.shape[1:]))

    def check_alike(self, place: str = "check_alike") -> None:
        """Once after an iteration: between them nothing changes the parameters of a job."""
        done = [trainer.done for trainer in self.group.trainers.values()]
        if self.alike != done:
            super().check_alike(place)
            self.alike = done

    def outcome(self) -> dict[str, Any]:
        """Collective, ends with a flush: ``accuracy`` and ``params_sha256``, the same on all ranks.

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
        """Collective: the share of test targets that a classifier gets right; each rank tests a part.

        None of what is no classifier, and where layers exchange: ranks do not have equally many parts.
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
