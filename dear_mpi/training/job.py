"""A training job on one rank: model, data, buckets and exchange, from a ``Config``, the same on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np

from dear_mpi.collectives.plans.reach import wants_shared
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.slab import Slab
from dear_mpi.models.data import Batches
from dear_mpi.models.layer import Parameter, in_order
from dear_mpi.ranks.streams import open_streams
from dear_mpi.ranks.world import World
from dear_mpi.training.config import Config
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fusion import borders
from dear_mpi.training.line.arena import Arena, layout_of, line_dtype
from dear_mpi.training.line.bucket import cut
from dear_mpi.training.loss_meter import LossMeter
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.step import steps_of
from dear_mpi.training.trainer import Trainer
from dear_mpi.training.workload import make_workload

__all__ = ["Job"]

PLANS_BYTES = 16 << 20  # side buffers: two segments per plan and peer


class Job:
    """A model, its data, its buckets and a trainer for each schedule; the same on every rank.

    Constructing is collective. A context manager: leaving it ends the engine and gives all plans back.

    Args:
        schedules: names; all trainers share the model and the buckets, and may take turns.

    Raises:
        ArgumentError: something in ``config`` is not allowed here, on this rank or on another one.
        MismatchError: the ranks were asked for different things, or read different data.
    """

    def __init__(self, config: Config, world: World, schedules: Sequence[str]) -> None:
        self.config, self.world, self.schedules = config, world, tuple(schedules)
        agree(world.transport, "job", self.build)
        self.plans = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(self.streams.compute.use())
            stack.enter_context(np.errstate(all="ignore"))  # what is not finite is looked for, and said once
            stack.push(self.free)
            engine = stack.enter_context(Engine(self.streams))  # ends before its plans are freed
            options = {
                "algorithm": config.algorithm,
                "segment_bytes": config.segment_bytes,
                "debug": config.debug,
                "slab": self.slab,
            }
            self.fabric = LiveFabric(self.buckets, self.arena, world, engine, **options)
            self.plans.callback(self.fabric.free)
            self.meter = LossMeter(self.fabric, self.slab)
            self.plans.callback(self.meter.free)
            self.trainers = {name: self.trainer(name) for name in schedules}
            self.stack = stack.pop_all()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.stack.__exit__(kind, error, trace)

    def free(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Give the plans back; but not after an error of one rank alone, for then the peers may never answer."""
        if error is None or isinstance(error, AgreedError):
            self.plans.close()

    def build(self) -> dict[str, Any]:
        """Make everything that needs no communication; return what must be equal on all ranks."""
        config, world = self.config, self.world
        for name in self.schedules:
            schedule = find_schedule(name)
            try:
                check_algorithm(config.algorithm, world.transport, *schedule.collectives)
            except ValueError as error:
                raise ValueError(f"schedule {name!r} takes {' and '.join(schedule.collectives)}: {error}") from None
        if len(set(self.schedules)) != len(self.schedules):
            raise ValueError(f"schedules must be different ones, not {', '.join(self.schedules)}")
        self.streams = open_streams(config.device)
        self.workload = make_workload(config, world)
        facts = asdict(config) | {"parameters": self.parameters_sha256()}
        self.batches = None
        if self.workload.dataset is not None:
            examples = self.workload.dataset.train
            self.batches = Batches(examples, config.batch, rank=world.rank, size=world.size, seed=config.seed)
            facts["examples"] = sha256(examples.arrays)  # a rank that reads another file is noticed
        layers, wire = in_order(self.workload.layers), config.wire_type
        layout = layout_of(layers, wire, world.size)
        self.buckets = cut(layout, borders(config.fusion, layout, wire.itemsize), wire.itemsize)
        for name in self.schedules:
            rehearse(name, find_schedule(name), self.buckets, len(layers))
        with self.streams.compute.use():
            nbytes = Arena.nbytes(layout, line_dtype(layers), wire)
            self.slab = make_slab(self.streams.put(np.zeros(1)), nbytes, config, world.transport)
            self.arena = Arena(
                layers, layout, wire=wire, optimizer=config.new_optimizer(), slab=self.slab, put=self.streams.put
            )
        self.steps = steps_of(layers, self.arena)
        return facts

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.workload.layers for parameter in layer.parameters]

    def trainer(self, schedule: str) -> Trainer:
        """A trainer with this schedule."""
        hooks = find_schedule(schedule)(self.fabric)
        self.fabric.prepare(hooks.collectives)
        return Trainer(self.steps, self.workload.loss, self.meter, hooks, debug=self.config.debug)

    def batch(self, iteration: int) -> tuple[Array, Array, float]:
        """This rank's inputs and targets, and 1 / number of targets in the whole batch."""
        if self.batches is None:
            return np.zeros(0), np.zeros(0), 1.0
        x, targets = map(self.streams.put, self.batches.part(iteration))
        return x, targets, 1 / (self.config.batch * int(np.prod(targets.shape[1:])))

    def outcome(self) -> dict[str, Any]:
        """Collective, to be called after a flush: ``accuracy`` and ``params_sha256``, the same on all ranks.

        Raises:
            AgreedError: the last iteration went wrong, or a parameter is not finite.
            CollectiveError: the parameters differ.
        """
        for trainer in self.trainers.values():
            trainer.check()
        agree(self.world.transport, "training", self.check_parameters)
        return {"accuracy": self.accuracy(), "params_sha256": self.agreed_sha256()}

    def check_parameters(self) -> dict[str, Any]:
        """See that the last update has left nothing that is infinite or not a number."""
        for parameter in self.parameters:
            if not bool(array_module(parameter.value).isfinite(parameter.value).all()):
                what = "is infinite or not a number after the last update"
                raise ValueError(f"parameter {parameter.name} {what}: try a lower learning rate (--lr)")
        return {}

    def accuracy(self) -> float | None:
        """Collective: the share of test targets that the model gets right; each rank tests a part."""
        if self.workload.dataset is None:
            return None
        tests = self.workload.dataset.test
        numbers = np.arange(*chunk_bounds(len(tests), self.world.size, self.world.rank))
        right = total = 0
        for start in range(0, len(numbers), 256):
            x, targets = map(self.streams.put, tests.take(numbers[start : start + 256]))
            for step in self.steps:
                x = step.layer.forward(x)
            right += int((x.argmax(-1) == targets).sum())
            total += targets.size
        counts = self.world.transport.gather_values((right, total))
        return float(np.divide(*np.sum(counts, axis=0)))

    def agreed_sha256(self) -> str:
        """Collective: the SHA-256 of the parameters' bytes, which is the same on all ranks.

        Raises:
            CollectiveError: the parameters differ.
        """
        digests = self.world.transport.gather_values(self.parameters_sha256())
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise CollectiveError(f"parameters of rank {rank} differ from those of rank 0: {digest}, {digests[0]}")
        return str(digests[0])

    def parameters_sha256(self) -> str:
        return sha256(parameter.value for parameter in self.parameters)


def sha256(arrays: Any) -> str:
    """The SHA-256 of the bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(to_host(array)).view("u1").data)
    return digest.hexdigest()


def make_slab(beside: Array, nbytes: int, config: Config, transport: Transport) -> Slab:
    """Memory for the arena and the plans: one allocation for any fusion, unless plans need more than usual.

    The other ranks of the host can reach it if the algorithm makes use of that. Otherwise it is private, because MPI
    libraries are slower in shared memory; it is then on the device of the array ``beside``.
    """
    if config.device == "cpu" and wants_shared(config.algorithm, transport.hosts):
        return Slab(transport.memory.allocate, nbytes + PLANS_BYTES, growth=PLANS_BYTES)
    return Slab.beside(beside, nbytes + PLANS_BYTES, growth=PLANS_BYTES)
