"""Train a model from a ``Config`` on one rank, and report it as a JSON object, whose key names are a contract.

Iteration times are the slowest rank's. ``compute_s`` and ``exposed_comm_s`` are of the iteration of median length, on
its slowest rank; with sync intervals, ``compare`` averages the median one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dear_mpi.collectives import all_to_all
from dear_mpi.collectives.program.program import Partition, chunk_bounds
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.slab import round_up
from dear_mpi.models.data import Batches, Dataset, load_data
from dear_mpi.models.layer import Layer, Loss, NoLoss, is_exchanging
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import build_model
from dear_mpi.models.synthetic import (
    ALL_TO_ALL,
    ComputeTime,
    both_passes,
    load_modules,
    measured_seconds,
    synthetic_layers,
)
from dear_mpi.ranks.host import check_room
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import parse_straggler
from dear_mpi.training.buckets.layout import key_of, sha256, trained
from dear_mpi.training.events import Times, middle
from dear_mpi.training.runs.config import Config, kind_of
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.session import Session

REPORTED = "model fusion algorithm accumulate invariant device dtype decay warmup batch seed clip loss_scale"


@dataclass(frozen=True)
class Workload:
    """Hold a model with its loss and its data, if any."""

    model: str  # its name, or the checksum of a user's file
    layers: list[Layer]
    loss: Loss
    dataset: Dataset | None
    compute_time: ComputeTime | None = None  # of a synthetic model
    slowness: float = 1.0  # of this rank relative to others


def make_workload(config: Config, world: World) -> Workload:
    """Make a model on data, or a synthetic one. Raises ValueError, also if memory is too small."""
    rng = np.random.default_rng(config.seed)
    if kind_of(config.model) == "synthetic":
        return synthetic_workload(config, world, rng)
    dtype = lookup("dtype", config.dtype, {name: DTYPES[name] for name in ("fp64", "fp32")})
    dataset = load_data(config.data, dtype, config.context)
    layers, loss, said = build_model(config.model, dataset, rng, dtype)
    sizes = {key_of(parameter): parameter.value.size for layer in layers for parameter in trained(layer)}  # tied: once
    check_model(sum(sizes.values()), config, world)
    return Workload(said, layers, loss, dataset)


def synthetic_workload(config: Config, world: World, rng: np.random.Generator) -> Workload:
    modules = load_modules(config.model.partition(":")[2])
    forward_s, backward_s = both_passes(config.forward_time, config.backward_time, measured_seconds(modules))
    check_model(sum(count for module in modules for count in module.counts), config, world)
    buffer = cache(lambda nbytes: np.zeros(round_up(nbytes, world.size), np.uint8))
    compute_time = ComputeTime()
    layers = synthetic_layers(
        modules,
        forward_s=forward_s,
        backward_s=backward_s,
        dtype=DTYPES[config.dtype],
        rng=rng,
        compute_time=compute_time,
        exchange=lambda nbytes: all_to_all(buffer(nbytes), world.transport, algorithm=ALL_TO_ALL[0]),
    )
    slowness = parse_straggler(config.straggler, world.size)[world.rank]
    return Workload(config.model, layers, NoLoss(), None, compute_time, slowness)


def check_model(elements: int, config: Config, world: World) -> None:
    """Check that values, gradients and optimiser state fit in the host's memory."""
    dtype = DTYPES[config.dtype]
    state = elements * config.new_optimizer().state_arrays * compute_dtype(dtype).itemsize
    if config.find_route().update.shard:
        state //= world.size
    if config.device == "cpu":
        check_room(f"model {config.model!r}", 2 * elements * dtype.itemsize + state, world.ranks_here)


class Job(Session):
    """Train a model from a ``Config``, with schedules that may take turns. The constructor is collective.

    Raises:
        ArgumentError: a setting is not allowed, on this rank or on another one.
        MismatchError: the ranks were asked for different things, or read different data.
    """

    def __init__(self, config: Config, world: World, schedules: Sequence[str], *, elastic: bool = False) -> None:
        self.config = config
        agree(world.transport, "job", lambda: self.prepare(world))
        workload, options = self.workload, config.options() | {"elastic": elastic}
        super().__init__(workload.layers, workload.loss, world, schedules=schedules, name="job", **options)

    def prepare(self, world: World) -> dict[str, Any]:
        """Make the model and its batches; return the facts that ranks compare."""
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
        """Return this rank's inputs and targets, and the whole batch's number of targets."""
        owners, workload = self.group.owners, self.workload
        if workload.compute_time is not None:
            workload.compute_time.pace = workload.slowness * owners.speeds[self.world.rank] * owners.ranks
        shares = owners.weights or [len(part) for part in self.group.shares]
        if self.batches is None:
            own = Partition.of(self.config.batch, owners.ranks, shares).shard(self.world.rank)
            nothing = np.zeros(own.stop - own.start)
            return nothing, nothing, 0
        self.batches.rank, self.batches.size = self.world.rank, self.world.size  # survivors have other ones
        x, targets = self.batches.part(iteration, shares)
        return x, targets, self.config.batch * int(np.prod(targets.shape[1:]))

    def outcome(self) -> dict[str, Any]:
        """Flush and return ``accuracy`` and ``params_sha256``, equal on all ranks. Collective.

        Raises:
            AgreedError: the last iteration went wrong, or a parameter is not finite.
            MismatchError: the parameters differ.
        """
        self.check_alike()
        digest: dict[str, Any] = {}

        def check() -> dict[str, Any]:
            for parameter in self.parameters:
                if not bool(array_module(parameter.value).isfinite(parameter.value).all()):
                    what = "is infinite or not a number after the last update"
                    raise ValueError(f"parameter {parameter.name} {what}: try a lower learning rate (--lr)")
            digest["params_sha256"] = self.parameters_sha256()
            return digest

        agree(self.world.transport, "training", check)
        return {"accuracy": self.accuracy(), **digest}

    def accuracy(self) -> float | None:
        """Return the share of test targets that a classifier gets right; each rank tests a part. Collective.

        None: the model is no classifier, or layers exchange, and ranks have unequal parts.
        """
        exchanging = any(is_exchanging(layer) for layer in self.layers)
        if self.workload.dataset is None or not isinstance(self.loss, SoftmaxCrossEntropy) or exchanging:
            return None
        tests = self.workload.dataset.test
        numbers = np.arange(*chunk_bounds(len(tests), self.world.size, self.world.rank))
        right = total = 0
        for start in range(0, len(numbers), 256):
            x, targets = map(self.group.streams.put, tests.take(numbers[start : start + 256]))
            for step in self.group.calls:
                x = step.layer.forward(x)
            right += int((x.argmax(-1) == targets).sum())
            total += targets.size
        counts = self.world.transport.gather_values((right, total))
        return float(np.divide(*np.sum(counts, axis=0)))


@dataclass(frozen=True)
class Timing:
    """Hold times of the iteration of median length, which add up, and lists of all iterations."""

    iteration_s: list[float]
    forward_s: float
    backward_s: float
    exposed_comm_s: float
    bound_s: float
    counted_s: list[float] = field(repr=False)  # without those that fill the pipeline
    steady_s: list[float] = field(repr=False)  # comparable: counted_s, or means of its sync intervals

    @property
    def rest_s(self) -> float:
        """Return the time of updates, the loss, packing and the like."""
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
        network: see ``communication`` in ``training/fabric/plan_cost.py``.
        fill, early: uncounted iterations of each block, except its last one, and uncounted blocks.
        period: iterations of a sync interval.
        parts: of a batch.
    """
    slowest = []
    for ranks in zip(*transport.gather_values(blocks), strict=True):
        times = np.array(ranks)  # (ranks, iterations, times); one rank's times add up
        slowest.append(times[times[:, :, 0].argmax(axis=0), np.arange(times.shape[1])])
    counted = np.concatenate([block[min(fill, len(block) - 1) :] for block in slowest[early:]])
    steady = counted.reshape(-1, period, counted.shape[1]).mean(axis=1)
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


def describe(job: Job, schedule: str, figures: Timing, chosen: Sequence[str]) -> dict[str, Any]:
    """Return the keys that ``train`` and ``compare`` share; ``chosen`` are the buckets' algorithms."""
    config, world, group = job.config, job.world, job.group
    rates = world.transport.rates
    return {
        "schedule": schedule,
        **{name: getattr(config, name) for name in REPORTED.split()},
        "update": "sharded" if group.route.update.shard else "full",
        "route": group.route.name,
        "period": group.route.period,
        "optimizer": str(job.options.optimizer),
        "chosen": chosen,
        "buckets": len(chosen),
        "ranks": world.size,
        "weights": group.owners.weights,
        "hosts": world.ranks_per_host,
        "emulated_link": None if world.link is None else str(world.link),
        "rates_GBps": None if rates is None else [rate * 1e-9 for rate in rates],
        "data": None if job.workload.dataset is None else config.data,
        "wire": config.wire_name,
        "unfit": group.fabric.tally[False],
        "transport": world.transport.name,
        "iterations": len(figures.iteration_s),
        "iteration_s": figures.iteration_s,
        "compute_s": figures.forward_s + figures.backward_s,
        "exposed_comm_s": figures.exposed_comm_s,
        "bound_s": figures.bound_s,
    }
