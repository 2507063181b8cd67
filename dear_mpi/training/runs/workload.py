"""Make the workload of a ``Config``: a model with its loss and data; check the hosts' memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dear_mpi.collectives import all_to_all
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.slab import round_up
from dear_mpi.models.data import Dataset, Examples, load_data
from dear_mpi.models.layer import Layer, Loss
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import MODELS
from dear_mpi.models.synthetic import (
    EXCHANGE,
    ComputeTime,
    NoLoss,
    both_passes,
    load_modules,
    measured_seconds,
    synthetic_layers,
)
from dear_mpi.models.user_model import build_model
from dear_mpi.ranks.host import check_room
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import parse_straggler
from dear_mpi.training.line.owners import known
from dear_mpi.training.line.parameters import key_of, trained
from dear_mpi.training.runs.config import IN_FILE, Config, kind_of


@dataclass(frozen=True)
class Workload:
    """Hold a model with its loss and its data; synthetic models have no data."""

    model: str  # for comparison between ranks: its name, or the checksum of a user's file
    layers: list[Layer]
    loss: Loss
    dataset: Dataset | None
    compute_time: ComputeTime | None = None  # of a synthetic model
    slowness: float = 1.0  # compute time of this rank relative to others

    def take(self, share: float) -> None:
        """Let synthetic layers take the time of this share of a batch, times the ranks."""
        if self.compute_time is not None:
            self.compute_time.pace = self.slowness * share


def make_workload(config: Config, world: World) -> Workload:
    """Make a built-in or user model on data, or a synthetic model.

    Raises ValueError if a name is unknown, a file is unusable, model and data do not fit, or memory is too small.
    """
    kind, rng = kind_of(config.model), np.random.default_rng(config.seed)
    if kind == "synthetic":
        return synthetic_workload(config, world, rng)
    dtype = lookup("dtype", config.dtype, {name: DTYPES[name] for name in ("fp64", "fp32")})
    dataset = load_data(config.data, dtype, config.context)
    if kind == IN_FILE:
        layers, loss, said = build_model(config.model, dataset, rng, dtype)
        found = Workload(said, layers, loss, dataset)
    else:
        build, text = lookup("model", config.model, MODELS), dataset.train.take(np.zeros(1, np.intp))[0]
        if (text.dtype.kind in "iu") != (config.model == "gpt"):
            what = f"model {config.model!r} cannot be trained on data {config.data!r}"
            raise ValueError(f"{what}: gpt takes text alone (--data FILE.txt)")
        layers = build(dataset.shape, dataset.classes, rng, dtype)
        found = Workload(config.model, layers, SoftmaxCrossEntropy(), dataset)
    sizes = {key_of(parameter): parameter.value.size for layer in layers for parameter in trained(layer)}  # tied: once
    check_model(sum(sizes.values()), config, world)
    check_batch(layers, dataset.train, config, world)
    return found


def synthetic_workload(config: Config, world: World, rng: np.random.Generator) -> Workload:
    modules = load_modules(config.model.partition(":")[2])
    forward_s, backward_s = both_passes(config.forward_time, config.backward_time, measured_seconds(modules))
    dtype = lookup("dtype", config.dtype, DTYPES)
    check_model(sum(count for module in modules for count in module.counts), config, world)
    compute_time = ComputeTime(config.compute)
    layers = synthetic_layers(
        modules,
        forward_s=forward_s,
        backward_s=backward_s,
        dtype=dtype,
        rng=rng,
        compute_time=compute_time,
        exchange=exchanger(world.transport),
    )
    slowness = parse_straggler(config.straggler, world.size)[world.rank]
    return Workload(config.model, layers, NoLoss(), None, compute_time, slowness)


def exchanger(transport: Transport) -> Callable[[int], object]:
    """Return a collective function that exchanges bytes, rounded up to a multiple of the ranks."""
    algorithm, _ = EXCHANGE
    buffer = cache(lambda nbytes: np.zeros(round_up(nbytes, transport.size), np.uint8))
    return lambda nbytes: all_to_all(buffer(nbytes), transport, algorithm=algorithm)


def check_model(elements: int, config: Config, world: World) -> None:
    """Check that values, buckets, optimiser state and compressed payloads of ``elements`` elements fit in memory.

    It ignores side buffers of plans: between hosts they may take as much as the gradients again.
    """
    route, dtype = config.find_route(), DTYPES[config.dtype]
    wire = DTYPES[config.line_type(route, config.dtype)]
    packed = 0 if wire == dtype else dtype.itemsize  # layers then have separate gradients
    packed += dtype.itemsize * (config.accumulate > 1)
    state = elements * config.new_optimizer().state_arrays * compute_dtype(dtype).itemsize
    if route.update.shard:
        state //= world.size
    each = dtype.itemsize * (1 + len(route.lines)) + wire.itemsize + packed
    sizes: dict[str, Any] = {"wire": wire.itemsize, "values": dtype.itemsize, "ranks": world.size}
    codes = sum(route.nbytes(line, elements, **sizes) for line in route.codes)
    check(f"model {config.model!r}", elements * each + state + codes, config, world)


def check_batch(layers: Sequence[Layer], examples: Examples, config: Config, world: World) -> None:
    """Check that a batch's inputs and all layers' outputs for a part of it fit in memory, from one example."""
    x, _ = examples.take(np.zeros(1, np.intp))
    rows = max(Partition.of(config.batch, world.size, known(config.weights, world.size)).counts)
    nbytes, part = x.nbytes * rows, -(-rows // config.accumulate)
    for layer in layers:
        x = layer.forward(x)
        nbytes += x.nbytes * part
    check(f"batch {config.batch}", nbytes, config, world)


def check(what: str, nbytes: int, config: Config, world: World) -> None:
    """Raise ValueError if the ranks of a host need more than its memory; GPU memory is not checked."""
    if config.device == "cpu":
        check_room(what, nbytes, world.ranks_here)
