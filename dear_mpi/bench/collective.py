"""Time collectives of several makers in one run: our plans, the MPI library, a prototype written by hand.

On a GPU: our ring with device memory handed to MPI (where it takes it), staged through pinned memory, and the ring of
the host with explicit copies around it.

The contestants take turns, on the same buffer, in place; so whatever else the machine does hits them alike. One
sample is one call on its slowest rank, from a barrier to the end; connections are warmed up at every size, and each
result is checked against the exact sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.bench.contestants import CONTESTANTS
from dear_mpi.collectives.agree import agree
from dear_mpi.collectives.partition import chunk_bounds
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.choose import choose
from dear_mpi.stats import median
from dear_mpi.streams import Stream, Streams, open_streams
from dear_mpi.world import World

__all__ = ["Row", "bench_collective"]

# Bytes over algbw that cross a rank's link: the definitions of nccl-tests, for sizes of the full buffer.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda size: 2 * (size - 1) / size,
    "reduce_scatter": lambda size: (size - 1) / size,
    "all_gather": lambda size: (size - 1) / size,
}
BUDGET_BYTES = 1e9  # per contestant and size; decides the number of samples
SAMPLES = (15, 200)
WARM_UP = 3


@dataclass(frozen=True)
class Row:
    """One contestant at one size.

    ``wrong`` counts elements that differed from the exact result, over all ranks and calls; ``slow_rank`` is the rank
    that was most often the slowest.
    """

    collective: str
    algorithm: str
    backend: str
    device: str
    ranks: int
    bytes: int
    count: int
    dtype: str
    op: str
    placement: str
    segment_bytes: int
    samples: int
    min_us: float
    p50_us: float
    ci_low_us: float
    ci_high_us: float
    mean_us: float
    p99_us: float
    max_us: float
    algbw_GBps: float
    busbw_GBps: float
    wrong: int
    slow_rank: int


def bench_collective(
    collective: str, sizes: Sequence[int], world: World, segment_bytes: int, device: str = "cpu"
) -> list[Row]:
    """Collective: a row per size and contestant, the baseline first; fp32, sum, in place.

    Args:
        sizes: bytes of the full buffer; rounded down to whole elements, the same on every rank.
        device: where the buffer is.

    Raises:
        ArgumentError: an unknown collective, a size below one element per rank, or no such device.
    """
    agree(world.transport, "bench", lambda: checked(collective, sizes, world.size, device))
    call = Call(collective, device, segment_bytes, open_streams(device))
    with call.streams.compute.use():
        return [row for nbytes in sizes for row in at_size(call, nbytes, world)]


def checked(collective: str, sizes: Sequence[int], ranks: int, device: str) -> dict[str, object]:
    """The arguments, if they are allowed."""
    choose("collective", collective, BUS_FACTORS)
    if min(sizes) < 4 * ranks:
        raise ValueError(f"sizes must be at least {4 * ranks} B on {ranks} ranks, not {min(sizes)} B")
    open_streams(device)
    return {"collective": collective, "sizes": tuple(sizes), "device": device}


@dataclass(frozen=True)
class Call:
    """What is timed."""

    collective: str
    device: str
    segment_bytes: int
    streams: Streams


def at_size(call: Call, nbytes: int, world: World) -> list[Row]:
    """All contestants, taking turns."""
    count = nbytes // world.size // 4 * world.size  # the prototype needs equal chunks
    x = call.streams.put(np.zeros(count, np.float32))
    contestants = CONTESTANTS[call.device](call.collective, x, world, call.segment_bytes)
    repeats = int(min(max(SAMPLES[0], BUDGET_BYTES / nbytes), SAMPLES[1]))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    wrong = dict.fromkeys(contestants, 0)
    data = Data(call.collective, x, world, call.streams)
    for turn in range(WARM_UP + repeats):
        for name, contestant in contestants.items():
            data.fill(turn)
            elapsed_s = timed(contestant, call.streams.compute)
            if turn >= WARM_UP:
                samples[name].append(elapsed_s)
            wrong[name] += data.errors(turn)
    for contestant in contestants.values():
        contestant.free()
    return [summary(call, name, x, world, samples[name], wrong[name]) for name in contestants]


def timed(run: Callable[[], object], stream: Stream) -> float:
    """Seconds of one run on this rank, from a barrier on to the end of its last kernel."""
    from dear_mpi.collectives.mpi_transport import world_communicator  # imports MPI, which this module must not

    world_communicator().Barrier()
    begin = stream.mark()
    run()
    return stream.seconds(begin, stream.mark())


class Data:
    """Whole numbers whose sums are exact in fp32: different on every rank, in every element, and in every turn."""

    def __init__(self, collective: str, x: Array, world: World, streams: Streams) -> None:
        self.x = x
        self.steps = 1 if collective == "all_gather" else world.size  # by how much a result grows from turn to turn
        rows = [(np.arange(x.size, dtype=np.float32) + 7 * rank) % 31 for rank in range(world.size)]
        bounds = [chunk_bounds(x.size, world.size, rank) for rank in range(world.size)]
        expected = np.sum(rows, axis=0)
        if collective == "all_gather":
            expected = np.concatenate([row[start:stop] for row, (start, stop) in zip(rows, bounds, strict=True)])
        self.mine, self.expected = map(streams.put, (rows[world.rank], expected))
        self.part = slice(*bounds[world.rank]) if collective == "reduce_scatter" else slice(None)
        self.library = array_module(x)
        self.scratch = self.library.empty_like(x)

    def fill(self, turn: int) -> None:
        self.library.add(self.mine, np.float32(turn), out=self.x)

    def errors(self, turn: int) -> int:
        """Elements of this rank's result that are not the exact one."""
        self.library.add(self.expected, np.float32(self.steps * turn), out=self.scratch)
        return int(self.library.count_nonzero(self.x[self.part] != self.scratch[self.part]))


def summary(call: Call, name: str, x: Array, world: World, samples: list[float], wrong: int) -> Row:
    """Collective: one row, from the slowest rank of each call."""
    answers = world.transport.gather_values((samples, wrong))
    slowest_us = np.max([answer[0] for answer in answers], axis=0) * 1e6
    middle = median(slowest_us.tolist())
    algbw = x.nbytes / middle.value * 1e-3
    return Row(
        collective=call.collective,
        algorithm=name,
        backend=world.transport.name,
        device=call.device,
        ranks=world.size,
        bytes=x.nbytes,
        count=x.size,
        dtype="fp32",
        op="none" if call.collective == "all_gather" else "sum",
        placement="in place",
        segment_bytes=call.segment_bytes,
        samples=len(samples),
        min_us=float(slowest_us.min()),
        p50_us=middle.value,
        ci_low_us=middle.low,
        ci_high_us=middle.high,
        mean_us=float(slowest_us.mean()),
        p99_us=float(np.quantile(slowest_us, 0.99)),
        max_us=float(slowest_us.max()),
        algbw_GBps=algbw,
        busbw_GBps=algbw * BUS_FACTORS[call.collective](world.size),
        wrong=sum(answer[1] for answer in answers),
        slow_rank=int(np.bincount(np.argmax([answer[0] for answer in answers], axis=0)).argmax()),
    )
