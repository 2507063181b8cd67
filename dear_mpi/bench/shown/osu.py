"""The layouts of OSU's benchmarks 7.4, for their readers: a block for each contestant of a collective.

    # OSU MPI Allreduce Latency Test v7.4
    # Datatype: MPI_FLOAT.
    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
    4                       1.06              0.18              1.95          50              Pass

As there, Avg is over calls and ranks, Min and Max are of the ranks' means, and where a buffer has a part for each rank,
its size is that of one part, except in a reduce-scatter. Source: its programs, and ``print_stats_validate`` in
util/osu_util_mpi.c.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dear_mpi.bench.judged.compared import is_noisy
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import label
from dear_mpi.bench.operations import OPERATIONS
from dear_mpi.bench.report import Report
from dear_mpi.bench.shown.words import of_one_part
from dear_mpi.reporting.units import grouped

TYPES = {  # MPI has no names of the others
    "fp64": "MPI_DOUBLE",
    "fp32": "MPI_FLOAT",
    **{f"{sign}int{bits}": f"MPI_{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Layout:
    """Of a benchmark. ``whole``: its sizes are of the whole buffer; ``rate``: it has MB/s, of messages in so many
    directions, in place of times."""

    name: str
    whole: bool = True
    rate: int = 0


LAYOUTS = {
    "all_reduce": Layout("Allreduce Latency"),
    "reduce_scatter": Layout("Reduce_scatter Latency"),
    "all_gather": Layout("Allgather Latency", whole=False),
    "broadcast": Layout("Broadcast Latency"),
    "reduce": Layout("Reduce Latency"),
    "all_to_all": Layout("All-to-All Personalized Exchange Latency", whole=False),
    "gather": Layout("Gather Latency", whole=False),
    "scatter": Layout("Scatter Latency", whole=False),
    "sendrecv": Layout("Sendrecv Latency"),  # which OSU has not
    "barrier": Layout("Barrier Latency"),
    "ping_pong": Layout("Latency"),
    "bandwidth": Layout("Bandwidth", rate=1),
    "both_ways": Layout("Bi-Directional Bandwidth", rate=2),
}


def block_of(row: Row) -> tuple[object, ...]:
    """What the rows of a block have in common: all but their sizes."""
    return row.algorithm, row.backend, row.segment_bytes, row.kind


def osu_lines(report: Report) -> Iterator[str]:
    for rows in grouped(report.rows, block_of).values():
        layout, first = LAYOUTS[rows[0].collective], rows[0]
        yield ""
        yield f"# OSU MPI{'-CUDA' if first.device == 'cuda' else ''} {layout.name} Test v7.4"
        yield from (f"# {text}" for text in (*remarks(rows), *report.findings.texts(rows, size_of)))
        if OPERATIONS[first.collective].sized:
            yield f"# Datatype: {TYPES.get(first.dtype, first.dtype)}."
        yield head(first.collective)
        yield from map(line_of, rows)


def remarks(rows: Sequence[Row]) -> Iterator[str]:
    """What OSU's benchmarks do not say: who measured what."""
    first = rows[0]
    op = "" if first.op == "none" else f", {first.op}"
    yield f"In this layout by dear-mpi bench: {label(first, cuts=True)}, {first.ranks} ranks, {first.placement}{op}"
    average = "calls, on the first rank" if OPERATIONS[first.collective].pair else "calls and ranks"
    yield f"Avg is over {average}; Iterations are samples, {first.cadence}; over {first.backend}"
    if not first.is_balanced:
        yield f"Ranks arrive as --arrival {first.arrival} says; times are from the last arrival"
    if noisy := [str(size_of(row)) for row in rows if is_noisy(row)]:
        yield f"The median has an interval wider than itself at {', '.join(noisy)}"


def head(collective: str) -> str:
    operation = OPERATIONS[collective]
    what = "Bandwidth (MB/s)" if LAYOUTS[collective].rate else "Avg Latency(us)"
    more = "" if operation.pair else f"{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}"
    return f"{'# Size':10}{what:>18}{more}{'Validation':>18}" if operation.sized else f"# {what}{more}"


def line_of(row: Row) -> str:
    assert row.rank_mean_us is not None, "it was just measured"
    operation, rate = OPERATIONS[row.collective], LAYOUTS[row.collective].rate
    value = rate * row.bytes / row.rank_mean_us if rate else row.rank_mean_us
    more = "" if operation.pair else f"{row.rank_min_us:18.2f}{row.rank_max_us:18.2f}{row.samples:12}"
    if not operation.sized:
        return f"{value:17.2f}{more}"
    return f"{size_of(row):<10}{value:18.2f}{more}{'Fail' if row.wrong else 'Pass':>18}"


def size_of(row: Row) -> int:
    """What OSU calls the size."""
    return row.bytes if LAYOUTS[row.collective].whole else of_one_part(row, row.bytes)
