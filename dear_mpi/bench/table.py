"""The rows of a benchmark as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dear_mpi.bench.collective import Row
from dear_mpi.bench.kernels import KernelRow
from dear_mpi.show import console, interval
from dear_mpi.units import format_bytes
from dear_mpi.world import World

__all__ = ["show_bench", "show_kernels"]


def show_bench(world: World, rows: Sequence[Row]) -> None:
    """One line per size and contestant; the ratio is to the first contestant at the same size."""
    first = rows[0]
    table = Table(
        title=f"{first.collective}, {first.ranks} ranks, {first.dtype}, {first.op}, in place, {first.device},"
        f" over {first.backend}",
        caption="us: medians over calls of the slowest rank; ± to the farther end of the 95 % interval",
    )
    for head in ("bytes", "algorithm", "time (us)", "busbw GB/s", f"/ {first.algorithm}", "samples", "#wrong"):
        table.add_column(head, justify="left" if head == "algorithm" else "right")
    for row in rows:
        baseline = next(other for other in rows if other.bytes == row.bytes)
        table.add_row(
            format_bytes(row.bytes),
            row.algorithm,
            interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, 0),
            f"{row.busbw_GBps:.2f}",
            f"{row.p50_us / baseline.p50_us:.2f}",
            str(row.samples),
            str(row.wrong),
            end_section=row is rows[-1] or rows[rows.index(row) + 1].bytes != row.bytes,
        )
    console(world).print(table)


def show_kernels(rows: Sequence[KernelRow], device: str) -> None:
    """One line per kernel and list of tensors."""
    table = Table(
        title=f"kernels on {device}, fp32 tensors, 1 rank",
        caption="medians; ± to the farther end of the 95 % interval; GB/s: bytes read and written; / copy: of the"
        " bandwidth of one copy of the bucket; / one by one: the speed against one copy per tensor",
    )
    heads = ("kernel", "tensors", "number", "bucket", "time (us)", "GB/s", "/ copy", "/ one by one")
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right")
    for row in rows:
        table.add_row(
            row.kernel,
            row.tensors,
            str(row.number),
            f"{row.bucket_bytes / 1e6:.1f} MB {row.bucket_dtype}",
            interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, 0),
            f"{row.GBps:.1f}",
            f"{row.of_copy:.2f}",
            "" if row.faster_than_each is None else f"{row.faster_than_each:.1f} x",
        )
    Console().print(table)
