"""Print in the layouts of nccl-tests 2.19 and OSU's benchmarks 7.4, for programs that read them; as CSV; for a page.

nccl-tests: 13 fields a row; other lines begin with #. One header and trailer: some readers take all between the last
two. Source: ``writeResultHeader``, ``writeBenchmarkLineBody``.

    size  count  type  redop  root | time  algbw  busbw  #wrong | time  algbw  busbw  #wrong
                                          out-of-place                   in-place

OSU: a block per candidate and collective. Source: ``print_stats_validate`` in util/osu_util_mpi.c.

    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
    4                       1.06              0.18              1.95          50              Pass

Avg is over calls and ranks; Min and Max are of the ranks' means. A size is of one rank's part, if there are parts,
except for reduce-scatter.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dear_mpi.bench.backends import label
from dear_mpi.bench.case import OPERATIONS, PLACEMENTS
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.output import (
    COLUMNS,
    FIGURES,
    SETTINGS,
    Format,
    average_lines,
    clocks,
    columns,
    fit_text,
    fitted,
    left_out,
    time_text,
)
from dear_mpi.bench.run import Report, shown
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.program import root, the_owner
from dear_mpi.reporting.units import format_bytes, grouped, plural


def of_one_part(row: Row, of: int) -> int:
    """Return a row's count or size (``of``), of the largest part if the buffer has parts."""
    contract = OPERATIONS[row.collective].contract
    parted = contract is not None and (contract.addressed or the_owner in (contract.begins, contract.ends))
    if not row.count or not parted:
        return of
    return -(-row.count // row.ranks) * (of // row.count)


PROGRAMS = (  # of nccl-tests
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "sendrecv"),
)
BOTH = ("out", "in")  # in each line
NCCL_TYPES = {"fp64": "double", "fp32": "float", "fp16": "half", "bf16": "bfloat16"}  # integers: same names
OPS = {"average": "avg"}
FORM = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}" + 2 * "  {:>7}  {:>6}  {:>6}  {:>6}"
HEADS = (  # name, unit
    *(("size", "(B)"), ("count", "(elements)"), ("type", ""), ("redop", ""), ("root", "")),
    *2 * (("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("#wrong", "")),
)


def suited_to_nccl(suite: Suite, flags: Mapping[str, Any]) -> Suite:
    """Take both placements, unless the user chose. ValueError: the layout cannot show the measurement."""
    suite = suite if "placement" in flags else replace(suite, placements=BOTH)
    if missing := [each for each in suite.collectives if each not in PROGRAMS]:
        raise ValueError(f"--format nccl has no layout for {', '.join(missing)}: it has {', '.join(PROGRAMS)}")
    if set(suite.placements) != set(BOTH):
        raise ValueError("--format nccl has both placements in each line: leave --placement out, or give in,out")
    return suite


def nccl_lines(report: Report) -> Iterator[str]:
    rows = report.rows
    yield "# dear-mpi bench, in the layout of nccl-tests 2.19"
    for text in dict.fromkeys(time_text(same) for same in grouped(rows, lambda row: row.cadence).values()):
        yield f"# time: {text}"
    yield "#"
    yield f"# {'':61}out-of-place{'in-place':>31}          "
    yield from (f"#{FORM.format(*texts)[1:]}" for texts in zip(*HEADS, strict=True))
    wanted, cuts = set(map(id, shown(rows, report.names))), len({row.segment_bytes for row in rows}) > 1
    printed = list[Row]()
    for block in grouped(
        rows, lambda row: (row.collective, row.ranks, row.device, row.cadence, row.algorithm, row.segment_bytes)
    ).values():
        first = block[0]
        name = label(first.algorithm, None, first.segment_bytes if cuts else None)  # auto's choice differs by size
        about = [name, first.collective, plural(first.ranks, "rank"), first.device, first.cadence]
        title, lines = f"{', '.join(about)}, over {first.backend}", list[str]()
        for same in grouped(block, lambda row: (row.bytes, row.dtype, row.op)).values():
            if len(same) == len(BOTH) and not wanted.isdisjoint(map(id, same)):
                lines.append(nccl_line(same))
                printed += same
        if lines:
            yield from ("#", f"# {title}", *lines)
    _, average = average_lines(printed)
    yield from (f"# {text}" for text in (next(average_lines(rows)), average))
    yield "#"
    yield from (f"# {text}" for text in left_out(report))


def nccl_line(rows: Sequence[Row]) -> str:
    first, found = rows[0], {row.placement: row for row in rows}
    kind = NCCL_TYPES.get(first.dtype, first.dtype), OPS.get(first.op, first.op)
    contract, times = OPERATIONS[first.collective].contract, list[str]()
    for row in (found[PLACEMENTS[placement]] for placement in BOTH):
        times += [fitted(row.p50_us, 7), fitted(row.algbw_GBps, 6), fitted(row.busbw_GBps, 6), f"{row.wrong:6g}"]
    has_root = contract is not None and root in (contract.begins, contract.ends)
    return FORM.format(first.bytes, of_one_part(first, first.count), *kind, 0 if has_root else -1, *times)


OSU_TYPES = {  # MPI has no names for the others
    "fp64": "MPI_DOUBLE",
    "fp32": "MPI_FLOAT",
    **{f"{sign}int{bits}": f"MPI_{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
TITLES = {  # of OSU
    "all_reduce": "Allreduce Latency",
    "reduce_scatter": "Reduce_scatter Latency",
    "all_gather": "Allgather Latency",
    "broadcast": "Broadcast Latency",
    "reduce": "Reduce Latency",
    "all_to_all": "All-to-All Personalized Exchange Latency",
    "gather": "Gather Latency",
    "scatter": "Scatter Latency",
    "sendrecv": "Sendrecv Latency",  # OSU lacks it
    "barrier": "Barrier Latency",
    "ping_pong": "Latency",
    "bandwidth": "Bandwidth",
    "both_ways": "Bi-Directional Bandwidth",
}


def osu_lines(report: Report) -> Iterator[str]:
    for rows in grouped(report.rows, lambda row: (row.algorithm, row.backend, row.segment_bytes, row.kind)).values():
        first, operation = rows[0], OPERATIONS[rows[0].collective]
        op = "" if first.op == "none" else f", {first.op}"
        name = label(first.algorithm, first.chosen, first.segment_bytes)
        average = "calls, on the first rank" if operation.pair else "calls and ranks"
        yield ""
        yield f"# OSU MPI{'-CUDA' if first.device == 'cuda' else ''} {TITLES[first.collective]} Test v7.4"
        yield f"# In this layout by dear-mpi bench: {name}, {first.ranks} ranks, {first.placement}{op}"
        yield f"# Avg is over {average}; Iterations are samples, {first.cadence}; over {first.backend}"
        if noisy := [str(osu_size(row)) for row in rows if row.median_us.is_noisy]:
            yield f"# The median has an interval wider than itself at {', '.join(noisy)}"
        if operation.sized:
            yield f"# Datatype: {OSU_TYPES.get(first.dtype, first.dtype)}."
        what = "Bandwidth (MB/s)" if operation.window > 1 else "Avg Latency(us)"
        more = "" if operation.pair else f"{'Min Latency(us)':>18}{'Max Latency(us)':>18}{'Iterations':>12}"
        yield f"{'# Size':10}{what:>18}{more}{'Validation':>18}" if operation.sized else f"# {what}{more}"
        yield from map(osu_line, rows)


def osu_line(row: Row) -> str:
    assert row.rank_mean_us is not None, "it was just measured"
    operation = OPERATIONS[row.collective]
    rate = operation.factor(row.ranks) if operation.window > 1 else 0  # directions, for MB/s
    value = rate * row.bytes / row.rank_mean_us if rate else row.rank_mean_us
    more = "" if operation.pair else f"{row.rank_min_us:18.2f}{row.rank_max_us:18.2f}{row.samples:12}"
    if not operation.sized:
        return f"{value:17.2f}{more}"
    return f"{osu_size(row):<10}{value:18.2f}{more}{'Fail' if row.wrong else 'Pass':>18}"


def osu_size(row: Row) -> int:
    return row.bytes if row.collective == "reduce_scatter" else of_one_part(row, row.bytes)


def csv_lines(report: Report) -> Iterator[str]:
    """Unknown values are empty, lists are JSON."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in report.rows:
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow([json.dumps(value) if isinstance(value, list) else value for value in values])
    yield from file.getvalue().splitlines()


PAGE: dict[str, Callable[[Row], str]] = {
    "collective": lambda row: row.collective,
    "ranks": lambda row: str(row.ranks),
    "algorithm": lambda row: label(row.algorithm, row.chosen, row.segment_bytes),
    "size": lambda row: format_bytes(row.bytes),
    **SETTINGS,
    **FIGURES,
    "model us": lambda row: "" if row.model_us is None else fitted(row.model_us, 7),
}


def markdown_lines(report: Report) -> Iterator[str]:
    yield f"| {' | '.join(PAGE)} |"
    yield "|---" * len(PAGE) + "|"
    for row in shown(report.rows, report.names):
        yield f"| {' | '.join(text(row).replace('|', chr(92) + '|') for text in PAGE.values())} |"
    yield ""
    model = "model: us that the network below predicts"
    yield from (f"- {text}" for text in (*columns(report.rows), model, fit_text(report.fit), *clocks(report)))


NCCL = Format(nccl_lines, names_missing=True, suited=suited_to_nccl)
OSU = Format(osu_lines)
CSV, MARKDOWN = Format(csv_lines), Format(markdown_lines)


def aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """
    >>> list(aligned([["", "us"], ["ring", "12.5"]]))
    ['        us', 'ring  12.5']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        texts = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *texts])
