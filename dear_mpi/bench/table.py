"""The rows of a benchmark as a table."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from dear_mpi.bench.case import Row
from dear_mpi.bench.collective import Report
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.kernels import KernelRow
from dear_mpi.bench.summary import CLASSES, NOT_OURS, against_mpi
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import PLUS_MINUS, console, interval
from dear_mpi.reporting.units import format_bytes, plural

__all__ = ["show_bench", "show_kernels"]


def show_bench(world: World, report: Report) -> None:
    """A table per collective, the means of its ratios, what was left out, and the network that fits."""
    screen = console(world)
    for _, group in groupby(report.rows, lambda row: row.collective):
        rows = list(group)
        screen.print(table_of(rows, report.memory))
        screen.print(summary_of(rows))
    for why, places in report.left_out.items():
        where = (f"{name} of {', '.join(map(format_bytes, sizes))}" for name, sizes in places.items())
        screen.print(f"left out: {why} ({'; '.join(where)})", soft_wrap=True, markup=False)
    screen.print(fit_text(report.fit), soft_wrap=True, markup=False)


def table_of(rows: Sequence[Row], memory: str) -> Table:
    """One line per size and backend; the ratio is to the first backend at the same size."""
    first = rows[0]
    others = {row.algorithm: row.backend for row in rows if row.backend != first.backend}
    backends = ", ".join([f"over {first.backend}", *(f"{name}: {backend}" for name, backend in others.items())])
    place = f"ours in {memory} memory" if first.device == "cpu" else first.device
    op = "" if first.op == "none" else f"{first.op}, "
    title = f"{first.collective}, {plural(first.ranks, 'rank')}, {first.dtype}, {op}{first.placement}, {place}"
    least, most = min(row.samples for row in rows), max(row.samples for row in rows)
    calls = f"{least} to {most} calls" if least < most else plural(most, "call")
    table = Table(
        title=f"{title}, {backends}",
        caption=f"us: medians over {calls}, each as long as on its slowest rank; {PLUS_MINUS}; busbw in GB/s",
    )
    ratio, cuts = f"/ {first.algorithm}", len({row.segment_bytes for row in rows}) > 1
    for head in ("bytes", "algorithm", "time (us)", "model", "busbw", ratio, "wrong"):
        table.add_column(head, justify="left" if head == "algorithm" else "right")
    baseline = {row.bytes: row.p50_us for row in reversed(rows)}
    for row, later in zip(rows, [*rows[1:], None], strict=True):
        digits = 0 if row.p50_us >= 100 else 1
        table.add_row(
            format_bytes(row.bytes),
            f"{row.algorithm}, {format_bytes(row.segment_bytes)}"
            if cuts and row.algorithm not in NOT_OURS
            else row.algorithm,
            interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, digits),
            "" if row.model_us is None else f"{row.model_us:.{digits}f}",
            f"{row.busbw_GBps:.2f}",
            f"{row.p50_us / baseline[row.bytes]:.2f}",
            str(row.wrong),
            end_section=later is None or later.bytes != row.bytes,
        )
    return table


def summary_of(rows: Sequence[Row]) -> Table | str:
    """Ours over the better MPI library at each size."""
    found = against_mpi(rows)
    if not found:
        return ""
    table = Table(
        title=f"{rows[0].collective}, {plural(rows[0].ranks, 'rank')}: time / better MPI library, geometric means"
    )
    table.add_column("algorithm")
    for name in CLASSES:
        table.add_column(name, justify="right")
    for name, means in found.items():
        table.add_row(name, *("" if mean is None else f"{mean:.2f}" for mean in means))
    return table


def fit_text(fit: Fit | None) -> str:
    """The fitted network in words."""
    if fit is None:
        needed = "two sizes of an algorithm of ours that sends messages, named and not chosen by auto"
        return f"No network fitted: that needs {needed}, on 2 to {MOST_RANKS} ranks."
    network = fit.network
    beta, gamma = (f"{1e-9 / value:.2f} GB/s" if value else "no limit" for value in (network.beta, network.gamma))
    told = gamma if fit.gamma_told else "unknown (these rows cannot tell gamma from beta: 1/beta covers both)"
    return (
        f"Network fitted to {plural(fit.rows, 'row')}: alpha {network.alpha * 1e6:.1f} us, 1/beta {beta}, 1/gamma "
        f"{told}; the median row is {fit.residual:.0%} off the model."
    )


def show_kernels(world: World, rows: Sequence[KernelRow], device: str) -> None:
    """One line per kernel and list of tensors."""
    table = Table(
        title=f"kernels on {device}, fp32 tensors, 1 rank",
        caption=f"us: medians; {PLUS_MINUS}; GB/s: bytes read and written; / copy: bandwidth over that of one copy of "
        "the bucket; / one by one: how many times as fast as one copy per tensor",
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
    console(world).print(table)
