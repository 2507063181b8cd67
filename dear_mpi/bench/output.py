"""Print a benchmark on rank 0 in a format of ``FORMATS``; this file has CSV and Markdown."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.text import Text

from dear_mpi.bench.backends import label
from dear_mpi.bench.layouts import nccl_lines, osu_lines
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import is_noisy, ratio_mark, shown, spread_text
from dear_mpi.bench.run import Report
from dear_mpi.bench.table import clocks, columns, fits_text, left_out, page_faults, table_lines
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import console, note
from dear_mpi.reporting.units import format_bytes

# Columns of choices; columns of results follow.
CHOSEN = (
    *("collective", "algorithm", "backend", "device", "ranks", "hosts", "bytes", "count", "dtype", "op", "placement"),
    *("segment_bytes", "cadence", "start", "arrival", "memory", "chosen"),
)
COLUMNS = CHOSEN + tuple(each.name for each in fields(Row) if each.name not in (*CHOSEN, "times_us"))


def object_of(row: Row, *, raw: bool) -> dict[str, Any]:
    """Return a row for ``--json``; ``raw``: with all samples of each rank."""
    return {name: value for name, value in asdict(row).items() if raw or name != "times_us"}


def csv_lines(report: Report) -> Iterator[str]:
    """Format a line of the names of ``--json``, then one per row. Unknown values are empty, lists are JSON."""
    yield csv_line(COLUMNS)
    for row in report.rows:
        values = [getattr(row, name) for name in COLUMNS]
        yield csv_line([json.dumps(value) if isinstance(value, list) else value for value in values])


def csv_line(values: Sequence[object]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="").writerow(values)
    return file.getvalue()


MARKDOWN: dict[str, Callable[[Row], str]] = {
    "collective": lambda row: row.collective,
    "ranks": lambda row: str(row.ranks),
    "size": lambda row: format_bytes(row.bytes),
    "type": lambda row: row.dtype,
    "op": lambda row: row.op,
    "placement": lambda row: row.placement,
    "algorithm": lambda row: label(row, cuts=True),
    "time (us)": lambda row: f"{row.p50_us:.2f}",
    "±%": lambda row: f"{spread_text(row, '{:.1f}'.format)}{' !' * is_noisy(row)}",
    "algbw (GB/s)": lambda row: f"{row.algbw_GBps:.3g}",
    "busbw (GB/s)": lambda row: f"{row.busbw_GBps:.3g}",
    "/peer": lambda row: f"{row.over_peer:.2f}{ratio_mark(row)}",
    "model (us)": lambda row: "" if row.model_us is None else f"{row.model_us:.2f}",
    "slow rank": lambda row: str(row.slow_rank),
    "wrong": lambda row: f"**{row.wrong}**" if row.wrong else "0",
}
MORE = "model: us that the network below predicts; slow rank: the one that was most often the last to end"
ON_THE_LEFT = ("arrival", "collective", "type", "op", "placement", "algorithm")


ARRIVAL: dict[str, Callable[[Row], str]] = {"arrival": lambda row: row.arrival}  # if there are several arrival patterns


def markdown_lines(report: Report) -> Iterator[str]:
    """Format a table of the shown candidates, and explain its columns."""
    columns_of = MARKDOWN if all(row.is_balanced for row in report.rows) else ARRIVAL | MARKDOWN
    yield f"| {' | '.join(columns_of)} |"
    yield f"|{'|'.join('---' if head in ON_THE_LEFT else '---:' for head in columns_of)}|"
    for row in shown(report.rows, report.names):
        yield f"| {' | '.join(text(row).replace('|', chr(92) + '|') for text in columns_of.values())} |"
    yield ""
    yield from (
        f"- {text}"
        for text in (*columns(report.rows), MORE, *page_faults(report.rows), *fits_text(report), *clocks(report))
    )


FORMATS: dict[str, Callable[[Report], Iterator[str] | Iterator[Text]]] = {
    "table": table_lines,
    "nccl": nccl_lines,
    "osu": osu_lines,
    "csv": csv_lines,
    "markdown": markdown_lines,
}
DEFAULT = "table"


def show_bench(world: World, report: Report, form: str = DEFAULT) -> None:
    """Print the rows. If a format cannot show missing candidates, notes on standard error name them."""
    lines = lookup("format", form, FORMATS)
    if world.rank:
        return
    screen = console(world)
    for line in lines(report):
        screen.print(line, soft_wrap=True, markup=False, emoji=False)
    if lines not in (table_lines, nccl_lines):
        for text in left_out(report):
            note(world, text)
