"""The table of a benchmark, in the columns of nccl-tests 2.19: its readers take the first 13 fields of each line that
does not begin with ``#``. What we have beside them comes after.

    size  count  type  redop  root | time  algbw  busbw  #wrong | time  algbw  busbw  #wrong | more of each | algorithm
                                        out-of-place                   in-place

Source of the columns, their widths and how numbers are fitted into them: ``writeBenchmarkLineBody`` of nccl-tests.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from rich.text import Text

from dear_mpi.bench.case import PLACEMENTS
from dear_mpi.bench.judged.compared import (
    CLASSES,
    FAULTY,
    NOISE,
    against_mpi,
    is_noisy,
    mean_text,
    merit,
    ratio_mark,
    shown,
    spread_text,
)
from dear_mpi.bench.judged.verdicts import verdicts
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import label, several_cuts
from dear_mpi.bench.report import Report
from dear_mpi.bench.shown.words import (
    MEANINGS,
    clocks,
    columns,
    fits_text,
    left_out,
    meaning,
    of_one_part,
    page_faults,
    title,
)
from dear_mpi.reporting.groups import grouped

TYPES = {"fp64": "double", "fp32": "float", "fp16": "half", "bf16": "bfloat16"}  # integers have the same names
OPS = {"average": "avg"}
SHARED, TIMES = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", "  {:>7}  {:>6}  {:>6}  {:>6}"
MORE = "  {:>7}  {:>6}  {:>7}  {:>4}"  # beside the columns of nccl-tests, for each placement
FORM = f"{SHARED}{2 * TIMES}{2 * MORE}  {{:>7}}  {{}}"
HEADS = (  # the name of a column, and its unit
    *(("size", "(B)"), ("count", "(elements)"), ("type", ""), ("redop", ""), ("root", "")),
    *2 * (("time", "(us)"), ("algbw", "(GB/s)"), ("busbw", "(GB/s)"), ("#wrong", "")),
    *2 * (("±%", ""), ("/peer", ""), ("model", "(us)"), ("slow", "rank")),
    *(("memory", ""), ("algorithm", "")),
)
MISSING = ["N/A"] * 4  # of a placement that was not measured
WRONG = "  <- WRONG"
Key = tuple[object, ...]


def fitted(value: float, width: int) -> str:
    """A number in as many characters: with 2, 1 or 0 decimals, else with an exponent.

    >>> [fitted(value, 7) for value in (0.123, 9999.994, 12345.67, 1e7 - 1, 1e9)], fitted(1e9, 6)
    (['0.12', '9999.99', '12345.7', '9999999', '1.0e+09'], '1e+09')
    """
    texts = [f"{value:{form}}" for form in (".2f", ".1f", ".0f", ".1e", ".0e")]
    return next((text for text in texts if len(text) <= width), texts[-1])


def table_lines(report: Report) -> Iterator[Text]:
    """A table for each collective and number of ranks; what is no row begins with ``#``."""
    for rows in grouped(report.rows, table_of).values():
        yield from map(comment, (title(rows), *meaning(rows), ""))
        yield from map(Text, heads())
        yield from lines_of(rows, report.names)
        yield from map(comment, (*footer(rows, report), ""))
    yield from map(comment, (*left_out(report), *fits_text(report), *clocks(report)))


def table_of(row: Row) -> Key:
    """What the rows of a table have in common."""
    return row.collective, row.ranks, row.device, row.cadence, row.arrival


def comment(text: str) -> Text:
    return Text(f"# {text}".rstrip())


def heads() -> Iterator[str]:
    """The lines over the columns; those of nccl-tests stand where they stand there."""
    yield f"# {'':61}out-of-place{'in-place':>31}{'out-of-place':>31}{'in-place':>30}"
    for texts in zip(*HEADS, strict=True):
        yield f"#{FORM.format(*texts)[1:]}".rstrip()


def lines_of(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Text]:
    """A line for each contestant, with both of its placements if one of them is shown; the fastest are bold."""
    wanted = {id(row) for row in shown(rows, names)}
    cuts = several_cuts(rows)
    for same in grouped(rows, lambda row: (row.bytes, row.dtype, row.op)).values():
        fastest = min(same, key=merit).p50_us
        for line in grouped(same, lambda row: (row.algorithm, row.segment_bytes)).values():
            if wanted.isdisjoint(map(id, line)):
                continue
            style = "bold" if fastest in [row.p50_us for row in line] else ""
            yield Text(line_of(line, cuts=cuts), style="bold red" if any(row.wrong for row in line) else style)


def line_of(rows: Sequence[Row], *, cuts: bool) -> str:
    """The rows of one contestant, which differ in their placement."""
    first, found = rows[0], {row.placement: row for row in rows}
    about = MEANINGS[first.collective]
    kind = TYPES.get(first.dtype, first.dtype), OPS.get(first.op, first.op)
    placed = [found.get(PLACEMENTS[each]) for each in ("out", "in")]
    cells = [cell for of in (times_of, more_of) for row in placed for cell in of(row)]
    memory, name = both(row.memory for row in rows), both(label(row, cuts=cuts) for row in rows)
    wrong = WRONG if any(row.wrong for row in rows) else ""
    return FORM.format(first.bytes, of_one_part(first, first.count), *kind, about.root, *cells, memory, name + wrong)


def both(texts: Iterable[str]) -> str:
    """What is said of the placements, once if it is the same.

    >>> both(["private", "private"]), both(["private", "shared"])
    ('private', 'private/shared')
    """
    return "/".join(dict.fromkeys(texts))


def times_of(row: Row | None) -> Sequence[str]:
    if row is None:
        return MISSING
    return fitted(row.p50_us, 7), fitted(row.algbw_GBps, 6), fitted(row.busbw_GBps, 6), f"{row.wrong:6g}"


def more_of(row: Row | None) -> Sequence[str]:
    if row is None:
        return MISSING
    model = "-" if row.model_us is None else fitted(row.model_us, 7)
    ratio = fitted(row.over_peer, 5) + ratio_mark(row)
    interval = spread_text(row, partial(fitted, width=6)) + "!" * is_noisy(row)
    return interval, ratio, model, str(row.slow_rank)


def footer(rows: Sequence[Row], report: Report) -> Iterator[str]:
    """The two sums of nccl-tests, what stands out, what the other columns are, ours over the fastest MPI calls, and who
    differs."""
    wrong, quiet = sum(row.wrong for row in rows), [row.busbw_GBps for row in rows if not is_noisy(row)]
    yield f"{'Out of bounds values':20} : {wrong} {'FAILED' if wrong else 'OK'}"
    yield from (f"  {text}" for text in report.findings.texts(rows))
    average = f"{statistics.fmean(quiet):g}" if quiet else "none: all rows are noisy"
    yield f"{'Avg bus bandwidth':20} : {average}"
    yield "  (the mean over the rows of all sizes, algorithms and placements: it depends on what was asked for)"
    yield from columns(rows)
    yield from page_faults(rows)
    if late := sum(row.late for row in rows):
        yield f"{late} samples do not count, because a rank was late for their start"
    for same in grouped(rows, lambda row: (row.placement, row.dtype, row.op)).values():
        yield from summary(same)
        yield from differences(same, report.names)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Ours over the fastest call of an MPI library in each case; nothing where no library takes part."""
    found = against_mpi(rows)
    if not found:
        return
    yield ""
    yield f"time / fastest MPI call, geometric means, {of_kind(rows[0])}"
    peers = dict.fromkeys(row.peer for row in rows)
    faulty = f"; {FAULTY}: none with right results, which alone count" * any(row.wrong for row in rows)
    yield f"  (fastest were: {', '.join(peers)}; {NOISE}: no case in which both medians are sure{faulty})"
    width = max(map(len, found))
    yield f"  {'':{width}}" + "".join(f"  {name:>15}" for name in CLASSES)
    for name, means in found.items():
        yield f"  {name:{width}}" + "".join(f"  {mean_text(mean):>15}" for mean in means)


def differences(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Who is faster than the peer, who is slower, and of whom that cannot be told."""
    found = list(verdicts(shown(rows, names), cuts=several_cuts(rows)))
    if found:
        yield ""
        yield f"who is faster, {of_kind(rows[0])} (each interval has 95 %, over all calls that may be the fastest)"
        yield from (f"  {line}" for line in found)


def of_kind(row: Row) -> str:
    return f"{row.placement}, {row.elements}"
