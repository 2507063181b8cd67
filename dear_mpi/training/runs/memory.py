"""The memory that a run needs at least: what its host does not have is refused before it is asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.data import Examples
from dear_mpi.models.layer import Layer
from dear_mpi.ranks.memory import check_room
from dear_mpi.ranks.world import World
from dear_mpi.training.line.weights import known
from dear_mpi.training.runs.config import Config


def check_model(elements: int, config: Config, world: World) -> None:
    """See that the values, the buckets, the optimiser's state and what codes need of so many elements find room.

    Side buffers of plans are not counted: between hosts they may take as much as the gradients once more.
    """
    dtype, wire = lookup("dtype", config.dtype, DTYPES), DTYPES[config.line_type(config.find_route(), config.dtype)]
    packed = 0 if wire == dtype else dtype.itemsize  # layers then have gradients of their own
    packed += dtype.itemsize * (config.accumulate > 1)
    state = elements * config.new_optimizer().state_arrays * compute_dtype(dtype).itemsize
    route = config.find_route()
    if route.update.shard:
        state //= world.size
    each = dtype.itemsize * (1 + len(route.lines)) + wire.itemsize + packed
    sizes: dict[str, Any] = {"wire": wire.itemsize, "values": dtype.itemsize, "ranks": world.size}
    codes = sum(route.nbytes(line, elements, **sizes) for line in route.codes)
    check(f"model {config.model!r}", elements * each + state + codes, config, world)


def check_batch(layers: Sequence[Layer], examples: Examples, config: Config, world: World) -> None:
    """See that the inputs of a batch, and all layers' outputs for a part of it, find room: judged by one example."""
    x, _ = examples.take(np.zeros(1, np.intp))
    rows = max(Partition.of(config.batch, world.size, known(config.weights, world.size)).counts)
    nbytes, part = x.nbytes * rows, -(-rows // config.accumulate)
    for layer in layers:
        x = layer.forward(x)
        nbytes += x.nbytes * part
    check(f"batch {config.batch}", nbytes, config, world)


def check(what: str, nbytes: int, config: Config, world: World) -> None:
    """A ValueError if each rank needs more than its host has; a GPU's memory is not looked at."""
    if config.device == "cpu":
        check_room(what, nbytes, world.ranks_here)
