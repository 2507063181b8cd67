"""Print the layout of nccl-tests 2.19: 13 fields in each row; all other lines begin with #.

    size  count  type  redop  root | time  algbw  busbw  #wrong | time  algbw  busbw  #wrong
                                          out-of-place                   in-place

A line does not name its algorithm: the lines of each stand below a remark that does. There is one header and one
trailer for all, since some readers take what is between the last two.

Source of columns, widths and how numbers are fitted into them: ``writeResultHeader`` and ``writeBenchmarkLineBody``.
"""

import statistics
from collections.abc import Iterator, Sequence

from dear_mpi.bench.case import PLACEMENTS
from dear_mpi.bench.judged.compared import is_noisy, shown
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import named, several_cuts
from dear_mpi.bench.report import Report
from dear_mpi.bench.shown.words import MEANINGS, fitted, left_out, of_one_part, time_text
from dear_mpi.reporting.units import format_bytes, grouped, plural

PROGRAMS = (  # collectives of nccl-tests
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "sendrecv"),
)
BOTH = ("out", "in")  # placements, of which each line has both
TYPES = {"fp64": "double", "fp32": "float", "fp16": "half", "bf16": "bfloat16"}  # integers have the same names
OPS = {"average": "avg"}
SHARED, TIMES = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", "  {:>7}  {:>6}  {:>6}  {:>6}"
FORM = f"{SHARED}{2 * TIMES}"
HEADS = (  # the name of a column, and its unit
    *(("size", "(B)"), ("count", "(elements)"), ("type", ""), ("redop", ""), ("root", "")),
    *2 * (("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("#wrong", "")),
)


def check_nccl(collectives: Sequence[str], placements: Sequence[str]) -> None:
    """A ValueError, before the work, if what is measured has no place in this layout."""
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
    for block in grouped(rows, block_of).values():
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
                lines.append(line_of(same))
                printed += same
        if lines:
            yield from ("#", f"# {title}", *lines)
    wrong = sum(row.wrong for row in rows)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {mean_busbw(printed):g}"
    yield "#"
    yield from (f"# {text}" for text in (*report.findings.texts(rows), *alone, *left_out(report)))


def mean_busbw(rows: Sequence[Row]) -> float:
    """Average what is printed, without rows whose interval is wider than their median."""
    found = [row.busbw_GBps for row in rows if not is_noisy(row)]
    return statistics.fmean(found) if found else 0.0


def block_of(row: Row) -> tuple[object, ...]:
    """What lines below one remark have in common."""
    return row.collective, row.ranks, row.device, row.cadence, row.arrival, row.algorithm, row.segment_bytes


def line_of(rows: Sequence[Row]) -> str:
    """The rows of one contestant, which differ in their placement."""
    first, found = rows[0], {row.placement: row for row in rows}
    kind = TYPES.get(first.dtype, first.dtype), OPS.get(first.op, first.op)
    times = [cell for placement in BOTH for cell in times_of(found[PLACEMENTS[placement]])]
    return FORM.format(first.bytes, of_one_part(first, first.count), *kind, MEANINGS[first.collective].root, *times)


def times_of(row: Row) -> Sequence[str]:
    return fitted(row.p50_us, 7), fitted(row.algbw_GBps, 6), fitted(row.busbw_GBps, 6), f"{row.wrong:6g}"
