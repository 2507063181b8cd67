"""The memory that a run needs at least, and its host has: what cannot work is refused before the system kills it."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.data import Examples
from dear_mpi.models.layer import Layer
from dear_mpi.ranks.world import World
from dear_mpi.training.runs.config import Config

MEMINFO, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_bytes() -> float:
    """The memory that this host can still give to this process; infinite where the system does not say it."""
    found = [math.inf]
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].removesuffix("kB")))
    with suppress(OSError, KeyError, ValueError):  # "max" where there is no limit
        limit = int((GROUP / "memory.max").read_text())
        found.append(limit)
        used = int((GROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        cached = int(stat["active_file"]) + int(stat["inactive_file"])  # files, dropped when memory is short
        found.append(limit - used + cached)
    return min(found)


def check_model(elements: int, config: Config, world: World) -> None:
    """See that the values, the buckets, the optimiser's state and what codes need of so many elements find room.

    Side buffers of plans are not counted: between hosts they may take as much as the gradients once more.
    """
    dtype, wire = lookup("dtype", config.dtype, DTYPES), lookup("wire", config.wire_name, DTYPES)
    packed = 0 if wire == dtype else dtype.itemsize  # layers then have gradients of their own
    packed += dtype.itemsize * (config.accumulate > 1)
    state = elements * config.new_optimizer().state_arrays * compute_dtype(dtype).itemsize
    route = config.find_route()
    if route.update.shard:
        state //= world.size
    each = dtype.itemsize * (1 + len(route.errors)) + wire.itemsize + packed
    sizes = {"wire": wire.itemsize, "values": dtype.itemsize, "ranks": world.size}
    codes = sum(route.nbytes(line, elements, **sizes) for line in route.codes)
    check(f"model {config.model!r}", elements * each + state + codes, config, world)


def check_batch(layers: Sequence[Layer], examples: Examples, config: Config, world: World) -> None:
    """See that the inputs of a batch, and all layers' outputs for a part of it, find room: judged by one example."""
    x, _ = examples.take(np.zeros(1, np.intp))
    rows = -(-config.batch // world.size)
    nbytes, part = x.nbytes * rows, -(-rows // config.accumulate)
    for layer in layers:
        x = layer.forward(x)
        nbytes += x.nbytes * part
    check(f"batch {config.batch}", nbytes, config, world)


def check(what: str, nbytes: int, config: Config, world: World) -> None:
    """A ValueError if each rank needs more than its host has; a GPU's memory is not looked at."""
    hosts = world.machines or world.transport.hosts
    ranks, available = hosts.count(hosts[world.rank]), available_bytes()
    if config.device == "cpu" and ranks * nbytes > available:
        needs = f"needs at least {ranks * nbytes / 2**30:.1f} GiB for the ranks of a host ({ranks})"
        raise ValueError(f"{what} {needs}, where {available / 2**30:.1f} GiB are available")
