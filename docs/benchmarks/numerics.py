"""The error of sums, by type, algorithm and number of ranks. As a script, it writes docs/benchmarks/numerics.md.

python -m docs.benchmarks.numerics

Programs are replayed here on numbers, all ranks in one process, with the kernel that plans use: 256 threads would take
minutes. That loopback gives the same bits is checked on the way, on as many ranks as that is quick for.
"""

import math
from itertools import zip_longest

import numpy as np

from dear_mpi.collectives import Partition, all_reduce, programs
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.calls import combiner
from dear_mpi.kernels.dtypes import DTYPES
from docs.benchmarks.provenance import BELOW, Watch, write_page

PAGE = "docs/benchmarks/numerics.md"
HEAD = """How large is the rounding error of a sum, by type, algorithm and number of ranks?

- **Set-up**: an all-reduce of 4096 numbers drawn from N(0.1, 1) on each rank. Programs are replayed in one process, by
  the kernel of plans. On 2 and 8 ranks the command compares the bits with a run over loopback.
- **Cells**: the relative L2 error, the norm of (result - exact) over the norm of exact. The exact sum is over
  contributions in the type of the row. Rounding fp64 to that type has its own row; both errors add up as squares do.
- **Limits**: nothing depends on time, and nothing is sent.
"""
READING = """
- A ring rounds at each of its P - 1 hops: the error grows about as the root of P.
- `rabenseifner` and `recursive_doubling` sum in lg P levels: from 64 to 256 ranks their error hardly changes.
- `ordered` sums numbers of two bytes in fp32 and rounds once, on any number of ranks; `shared` gives the same bits.
  For fp32 and fp64 it is a chain like the ring.
"""
ALGORITHMS = ("ring", "rabenseifner", "recursive_doubling", "ordered")
RANKS = (2, 8, 64, 256)
CHECKED_RANKS = (2, 8)
COUNT = 4096


def contributions(size, count, dtype):
    """What the ranks put in, drawn from N(0.1, 1): as numbers of this type, and before they were rounded to it."""
    exact = np.random.default_rng(0).normal(0.1, 1.0, (size, count))
    return exact.astype(DTYPES[dtype]), exact


def replayed(written, data):
    """Carry the programs of all ranks out on their data, step by step; the buffers of all ranks."""
    buffers = [row.copy() for row in data]
    borders = Partition.of(len(data[0]), len(data)).chunks(written[0].parts)

    def part(rank, chunks):
        return buffers[rank][borders[chunks.start] : borders[chunks.stop]]

    for steps in zip_longest(*(program.steps for program in written)):
        sent = {
            (send.peer, rank, send.chunks): part(rank, send.chunks).copy()
            for rank, step in enumerate(steps)
            for send in step.sends
        }
        for rank, step in enumerate(steps):
            for chunks in {receive.chunks for receive in step.receives}:
                receives = sorted((r for r in step.receives if r.chunks == chunks), key=lambda r: r.peer)
                arrived = {r.peer: sent[rank, r.peer, chunks] for r in receives}
                if receives[0].combine:
                    before = [array for peer, array in arrived.items() if peer < rank]
                    combiner(part(rank, chunks), before, list(arrived.values())[len(before) :])()
                else:
                    part(rank, chunks)[:] = arrived[receives[0].peer]
    return buffers


def over_threads(name, data):
    def body(transport):
        return all_reduce(data[transport.rank].copy(), transport, algorithm=name)

    return run_loopback(len(data), body)


def relative_error(result, terms):
    """The L2 norm of result - sum(terms) over that of the sum; the differences are formed exactly."""
    columns = terms.astype(np.float64).T.tolist()
    totals = [math.fsum(column) for column in columns]
    errors = [math.fsum([*column, -value]) for column, value in zip(columns, result.tolist(), strict=True)]
    return math.hypot(*errors) / math.hypot(*totals)


def error_of(name, dtype, size):
    """The error of an all-reduce.

    Raises:
        RuntimeError: the ranks do not end with the same bits, or over threads not with those of the replay.
    """
    data, _ = contributions(size, COUNT, dtype)
    results = replayed(programs(name, "all_reduce", size), data)
    results += over_threads(name, data) if size in CHECKED_RANKS else []
    if len({result.tobytes() for result in results}) > 1:
        raise RuntimeError(f"{name}, {dtype}, {size} ranks: not the same bits on all ranks, replayed and over threads")
    return relative_error(results[0], data)


def input_error(dtype, size):
    """What it costs to round the contributions, before anything is summed."""
    data, exact = contributions(size, COUNT, dtype)
    return relative_error(np.array([math.fsum(row) for row in data.astype(np.float64).T.tolist()]), exact)


SHOWN = ("fp32", "bf16")  # on the page; the others are in the file of all rows


def table():
    yield "| type | algorithm | " + " | ".join(f"{size} ranks" for size in RANKS) + " |"
    yield "|---|---|" + "---|" * len(RANKS)
    for dtype in DTYPES:
        for name in ALGORITHMS:
            yield line(dtype, f"`{name}`", [error_of(name, dtype, size) for size in RANKS])
        if dtype != "fp64":
            yield line(dtype, "rounding what goes in", [input_error(dtype, size) for size in RANKS])


def line(dtype, what, errors):
    return f"| {dtype} | {what} | " + " | ".join(f"{error:.1e}" for error in errors) + " |"


def main():
    watch = Watch("make numerics")
    lines = list(table())
    few = [*lines[:2], *(each for each in lines if each.startswith(tuple(f"| {dtype} " for dtype in SHOWN)))]
    write_page(PAGE, "The error of sums", [watch.record()], [HEAD, *few, READING, BELOW, *lines])


if __name__ == "__main__":
    main()
