"""What a benchmark prints: in a format of ``FORMATS``, on rank 0 alone."""

from collections.abc import Callable, Iterator

from rich.text import Text

from dear_mpi.bench.report import Report
from dear_mpi.bench.shown.flat import csv_lines, markdown_lines
from dear_mpi.bench.shown.nccl import nccl_lines
from dear_mpi.bench.shown.osu import osu_lines
from dear_mpi.bench.shown.table import table_lines
from dear_mpi.bench.shown.words import left_out
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import console, note

FORMATS: dict[str, Callable[[Report], Iterator[str] | Iterator[Text]]] = {
    "table": table_lines,
    "nccl": nccl_lines,
    "osu": osu_lines,
    "csv": csv_lines,
    "markdown": markdown_lines,
}
DEFAULT = "table"


def show_bench(world: World, report: Report, form: str = DEFAULT) -> None:
    """Print the rows. Where a format has no place for who was left out, notes on standard error say it."""
    lines = lookup("format", form, FORMATS)
    if world.rank:
        return
    screen = console(world)
    for line in lines(report):
        screen.print(line, soft_wrap=True, markup=False, emoji=False)
    if lines not in (table_lines, nccl_lines):
        for text in left_out(report):
            note(world, text)
