"""The rows of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from dear_mpi.bench.collective import Row
from dear_mpi.show import console, interval
from dear_mpi.units import format_bytes
from dear_mpi.world import World

__all__ = ["show_bench"]


def show_bench(world: World, rows: Sequence[Row]) -> None:
    """One line per size and contestant; the ratio is to ``native`` at the same size."""
    first = rows[0]
    table = Table(
        title=f"{first.collective}, {first.ranks} ranks, {first.dtype}, {first.op}, in place, over {first.backend}",
        caption="us: medians over calls of the slowest rank; ± to the farther end of the 95 % interval",
    )
    for head in ("bytes", "algorithm", "time (us)", "busbw GB/s", "/ native", "samples", "#wrong"):
        table.add_column(head, justify="left" if head == "algorithm" else "right")
    for row in rows:
        native = next(other for other in rows if other.bytes == row.bytes and other.algorithm == "native")
        table.add_row(
            format_bytes(row.bytes),
            row.algorithm,
            interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, 0),
            f"{row.busbw_GBps:.2f}",
            f"{row.p50_us / native.p50_us:.2f}",
            str(row.samples),
            str(row.wrong),
            end_section=row is rows[-1] or rows[rows.index(row) + 1].bytes != row.bytes,
        )
    console(world).print(table)
