"""Print in the layouts of nccl-tests 2.19 and OSU's benchmarks 7.4, for programs that read them.

nccl-tests: 13 fields in each row; all other lines begin with #.

    size  count  type  redop  root | time  algbw  busbw  #wrong | time  algbw  busbw  #wrong
                                          out-of-place                   in-place

A line does not name its algorithm: a remark before each candidate's lines does. There is one header and one trailer,
since some readers take everything between the last two. Source of columns, widths and number formats:
``writeResultHeader`` and ``writeBenchmarkLineBody``.

OSU: a block for each candidate of a collective.

    # OSU MPI Allreduce Latency Test v7.4
    # Datatype: MPI_FLOAT.
    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
    4                       1.06              0.18              1.95          50              Pass

Avg is over calls and ranks; Min and Max are of the ranks' means. If a buffer has a part for each rank, the size is one
part, except for reduce-scatter. Source: OSU's programs, and ``print_stats_validate`` in util/osu_util_mpi.c.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dear_mpi.bench.backends import label, named, several_cuts
from dear_mpi.bench.case import OPERATIONS, PLACEMENTS
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import is_noisy, shown
from dear_mpi.bench.run import Report
from dear_mpi.bench.table import MEANINGS, fitted, left_out, of_one_part, time_text
from dear_mpi.reporting.units import format_bytes, grouped, plural

PROGRAMS = (  # collectives of nccl-tests
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "sendrecv"),
)
BOTH = ("out", "in")  # the placements in each line
NCCL_TYPES = {"fp64": "double", "fp32": "float", "fp16": "half", "bf16": "bfloat16"}  # integers have the same names
OPS = {"average": "avg"}
SHARED, TIMES = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", "  {:>7}  {:>6}  {:>6}  {:>6}"
FORM = f"{SHARED}{2 * TIMES}"
HEADS = (  # a column's name, and its unit
    *(("size", "(B)"), ("count", "(elements)"), ("type", ""), ("redop", ""), ("root", "")),
    *2 * (("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("#wrong", "")),
)


def check_nccl(collectives: Sequence[str], placements: Sequence[str]) -> None:
    """Raise a ValueError, before the work, if the layout cannot show the measurement."""
    if missing := [each for each in collectives if each not in PROGRAMS]:
        raise ValueError(f"--format nccl has no layout for {', '.join(missing)}: it has {', '.join(PROGRAMS)}")
    if set(placements) != set(BOTH):
        raise ValueError("--format nccl has both placements in each line: leave --placement out, or give in,out")


def nccl_lines(report: Report) -> Iterator[str]:
    rows = report.rows
    yield "# dear-mpi bench, in the layout of nccl-tests 2.19"
    for text in dict.fromkeys(time_text(same) for same in grouped(rows, lambda row: row.cadence).values()):
        yield f"# time: {text}"
    yield "#"
    yield f"# {'':61}out-of-place{'in-place':>31}          "
    yield from (f"#{FORM.format(*texts)[1:]}" for texts in zip(*HEADS, strict=True))
    wanted, cuts, alone = set(map(id, shown(rows, report.names))), several_cuts(rows), list[str]()
    printed: list[Row] = []
    for block in grouped(rows, nccl_block).values():
        first = block[0]
        name = named(first.algorithm, None, first.segment_bytes if cuts else None)
        about = [
            name,
            first.collective,
            plural(first.ranks, "rank"),
            first.device,
            first.cadence,
            f"over {first.backend}",
        ]
        title = ", ".join(about + [f"arrival {first.arrival}"] * (not first.is_balanced))
        lines = list[str]()
        for same in grouped(block, lambda row: (row.bytes, row.dtype, row.op)).values():
            if len(same) < len(BOTH):
                alone.append(f"only {same[0].placement}: {title} at {format_bytes(same[0].bytes)}")
            elif not wanted.isdisjoint(map(id, same)):
                lines.append(nccl_line(same))
                printed += same
        if lines:
            yield from ("#", f"# {title}", *lines)
    wrong = sum(row.wrong for row in rows)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {mean_busbw(printed):g}"
    yield "#"
    yield from (f"# {text}" for text in (*alone, *left_out(report)))


def mean_busbw(rows: Sequence[Row]) -> float:
    """Return the mean of the printed rows, without rows with an interval wider than the median."""
    found = [row.busbw_GBps for row in rows if not is_noisy(row)]
    return statistics.fmean(found) if found else 0.0


def nccl_block(row: Row) -> tuple[object, ...]:
    """Return the columns that are equal in the lines after a remark."""
    return row.collective, row.ranks, row.device, row.cadence, row.arrival, row.algorithm, row.segment_bytes


def nccl_line(rows: Sequence[Row]) -> str:
    """Format a line for one candidate's rows, which differ in placement."""
    first, found = rows[0], {row.placement: row for row in rows}
    kind = NCCL_TYPES.get(first.dtype, first.dtype), OPS.get(first.op, first.op)
    times = [cell for placement in BOTH for cell in times_of(found[PLACEMENTS[placement]])]
    return FORM.format(first.bytes, of_one_part(first, first.count), *kind, MEANINGS[first.collective].root, *times)


def times_of(row: Row) -> Sequence[str]:
    return fitted(row.p50_us, 7), fitted(row.algbw_GBps, 6), fitted(row.busbw_GBps, 6), f"{row.wrong:6g}"


OSU_TYPES = {  # MPI has no names for the others
    "fp64": "MPI_DOUBLE",
    "fp32": "MPI_FLOAT",
    **{f"{sign}int{bits}": f"MPI_{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Layout:
    """The layout of one of OSU's benchmarks."""

    name: str
    whole: bool = True  # whether sizes are the whole buffer's
    rate: int = 0  # directions of messages, for MB/s instead of times


LAYOUTS = {
    "all_reduce": Layout("Allreduce Latency"),
    "reduce_scatter": Layout("Reduce_scatter Latency"),
    "all_gather": Layout("Allgather Latency", whole=False),
    "broadcast": Layout("Broadcast Latency"),
    "reduce": Layout("Reduce Latency"),
    "all_to_all": Layout("All-to-All Personalized Exchange Latency", whole=False),
    "gather": Layout("Gather Latency", whole=False),
    "scatter": Layout("Scatter Latency", whole=False),
    "sendrecv": Layout("Sendrecv Latency"),  # OSU lacks it
    "barrier": Layout("Barrier Latency"),
    "ping_pong": Layout("Latency"),
    "bandwidth": Layout("Bandwidth", rate=1),
    "both_ways": Layout("Bi-Directional Bandwidth", rate=2),
}


def osu_block(row: Row) -> tuple[object, ...]:
    """Return the columns that are equal in a block: all but the size."""
    return row.algorithm, row.backend, row.segment_bytes, row.kind


def osu_lines(report: Report) -> Iterator[str]:
    for rows in grouped(report.rows, osu_block).values():
        layout, first = LAYOUTS[rows[0].collective], rows[0]
        yield ""
        yield f"# OSU MPI{'-CUDA' if first.device == 'cuda' else ''} {layout.name} Test v7.4"
        yield from (f"# {text}" for text in remarks(rows))
        if OPERATIONS[first.collective].sized:
            yield f"# Datatype: {OSU_TYPES.get(first.dtype, first.dtype)}."
        yield head(first.collective)
        yield from map(osu_line, rows)


def remarks(rows: Sequence[Row]) -> Iterator[str]:
    """Return remarks that OSU's benchmarks lack: candidate, conditions and noise."""
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


def osu_line(row: Row) -> str:
    assert row.rank_mean_us is not None, "it was just measured"
    operation, rate = OPERATIONS[row.collective], LAYOUTS[row.collective].rate
    value = rate * row.bytes / row.rank_mean_us if rate else row.rank_mean_us
    more = "" if operation.pair else f"{row.rank_min_us:18.2f}{row.rank_max_us:18.2f}{row.samples:12}"
    if not operation.sized:
        return f"{value:17.2f}{more}"
    return f"{size_of(row):<10}{value:18.2f}{more}{'Fail' if row.wrong else 'Pass':>18}"


def size_of(row: Row) -> int:
    """Return the size by OSU's definition."""
    return row.bytes if LAYOUTS[row.collective].whole else of_one_part(row, row.bytes)
