"""The table of a benchmark, for people: at most ``WIDTH`` characters wide, the algorithm first. Only rows begin with
blanks; all other lines begin with ``#``. Settings that all rows share are above them; ``--json`` has all figures."""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.text import Text

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
from dear_mpi.bench.shown.words import clocks, columns, fits_text, fitted, left_out, meaning, page_faults, title
from dear_mpi.reporting.units import format_bytes, grouped

WIDTH = 110
LEAST_NAME = 12  # characters of an algorithm
WRONG = " WRONG"
Key = tuple[object, ...]
# A column if rows differ in it, else above them. Memory: where the buffers were.
SETTINGS: dict[str, Callable[[Row], str]] = {
    "type": lambda row: row.dtype,
    "op": lambda row: row.op,
    "placed": lambda row: row.placement.partition(" ")[0],
    "memory": lambda row: row.memory,
}
FIGURES: dict[str, Callable[[Row], str]] = {
    "time us": lambda row: fitted(row.p50_us, 7),
    "±%": lambda row: spread_text(row, partial(fitted, width=6)) + "!" * is_noisy(row),
    "busbw GB/s": lambda row: fitted(row.busbw_GBps, 6),
    "/peer": lambda row: fitted(row.over_peer, 5) + ratio_mark(row),
    "wrong": lambda row: f"{row.wrong}{WRONG}" if row.wrong else "0",
}


def table_lines(report: Report) -> Iterator[Text]:
    """A table for each collective and number of ranks; what is no row begins with ``#``."""
    for rows in grouped(report.rows, table_of).values():
        first, alike = rows[0], [name for name, text in SETTINGS.items() if len(set(map(text, rows))) == 1]
        words = {"type": first.dtype, "op": first.op, "placed": first.placement, "memory": f"{first.memory} memory"}
        shared = ", ".join(words[name] for name in alike if words[name] != "none")
        yield from comments(title(rows), *[shared] * bool(shared), *meaning(rows), "")
        yield from lines_of(rows, report.names)
        yield from comments(*footer(rows, report), "")
    yield from comments(*left_out(report), *fits_text(report), *clocks(report))


def table_of(row: Row) -> Key:
    """What the rows of a table have in common."""
    return row.collective, row.ranks, row.device, row.cadence, row.arrival


def comments(*texts: str) -> Iterator[Text]:
    """Lines that begin with ``#``; a long text is folded, and its other lines are further to the right."""
    for text in texts:
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        lines = textwrap.wrap(text, WIDTH - 2, subsequent_indent=indent, break_on_hyphens=False) or [""]
        yield from (Text(f"# {line}".rstrip()) for line in lines)


def lines_of(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Text]:
    """The heads, and a line for each row that is shown; the fastest of each size and kind are bold."""
    cuts, rows = several_cuts(rows), shown(rows, names)
    varied = {name: text for name, text in SETTINGS.items() if len(set(map(text, rows))) > 1}
    texts = {"size": lambda row: format_bytes(row.bytes), **varied, **FIGURES}
    cells = [list(texts), *([text(row) for text in texts.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    labels = [label(row, cuts=cuts) for row in rows]
    room = max(LEAST_NAME, WIDTH - 2 - sum(widths) - 2 * len(widths))
    left = min(room, max(map(len, ("algorithm", *labels))))
    fastest = {case: min(same, key=merit).p50_us for case, same in grouped(rows, lambda row: row.case).items()}

    def line(begin: str, name: str, texts: Sequence[str]) -> str:
        return (
            begin + name.ljust(left) + "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))
        )

    yield Text(line("# ", "algorithm", cells[0]))
    long = dict.fromkeys(name for name in labels if len(name) > left)
    yield from comments(*(f"{shortened(name, left)} is {name}" for name in long))
    for row, name, texts_of_row in zip(rows, labels, cells[1:], strict=True):
        style = "bold" if fastest[row.case] == row.p50_us else ""
        yield Text(line("  ", shortened(name, left), texts_of_row), style="bold red" if row.wrong else style)


def shortened(name: str, width: int) -> str:
    """
    >>> shortened("recursive_doubling", 12), shortened("ring", 12)
    ('…ve_doubling', 'ring')
    """
    return name if len(name) <= width else f"…{name[1 - width :]}"


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
