"""The rows of a benchmark as a table."""

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.table import Table

from dear_mpi.bench.case import Row
from dear_mpi.bench.collective import Report
from dear_mpi.bench.contestants import contestant
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.interleaved import CALLS
from dear_mpi.bench.kernels import KernelRow
from dear_mpi.bench.summary import CLASSES, against_mpi, shown
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import PLUS_MINUS, console, interval, table
from dear_mpi.reporting.units import format_bytes, format_hosts, plural


def show_bench(world: World, report: Report) -> None:
    """A table per collective, the means of its ratios, what was left out, and the network that fits."""
    screen = console(world)
    for _, group in groupby(report.rows, lambda row: row.collective):
        rows = list(group)
        screen.print(table_of(shown(rows, report.names)))
        screen.print(summary_of(rows))
    for why, places in report.left_out.items():
        where = (f"{name} of {', '.join(map(format_bytes, sizes))}" for name, sizes in places.items())
        screen.print(f"left out: {why} ({'; '.join(where)})", soft_wrap=True, markup=False)
    screen.print(fit_text(report.fit), soft_wrap=True, markup=False)


CAPTIONS = {
    "isolated": "us: medians over {calls}, each from a barrier to its end on its slowest rank",
    "streaming": f"us: medians over {{calls}}, each the mean of {CALLS[1]} or more calls in a row and over ranks; "
    "mean: of all calls and ranks (of the fastest and of the slowest rank)",
}


def table_of(rows: Sequence[Row]) -> Table:
    """One line per size and contestant."""
    first = rows[0]
    others = {name_of(row): row.backend for row in rows if row.backend != first.backend}
    over = ", ".join([f"over {first.backend}", *(f"{name}: {library}" for name, library in others.items())])
    op = "" if first.op == "none" else f"{first.op}, "
    what = f"{first.collective}, {format_hosts(first.hosts)}, {first.dtype}, {op}{first.placement}, {first.cadence}"
    least, most = min(row.samples for row in rows), max(row.samples for row in rows)
    calls = f"{least} to {most} samples" if least < most else plural(most, "sample")
    peers = "the fastest call of an MPI library" if contestant(first.peer).is_library else first.peer
    caption = CAPTIONS[first.cadence].format(calls=calls)
    return table(
        (list(group) for _, group in groupby(rows, lambda row: row.bytes)),
        columns_of(rows),
        left=("algorithm", "memory"),
        title=f"{what}, {over}",
        caption=f"{caption}; {PLUS_MINUS}; busbw in GB/s; / peer: time over that of {peers} at the same size",
    )


def columns_of(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """What is told of each row: a column that would say nothing of any is not there."""
    cuts = len({row.segment_bytes for row in rows}) > 1
    columns: dict[str, Callable[[Row], str]] = {
        "bytes": lambda row: format_bytes(row.bytes),
        "algorithm": lambda row: label(row, cuts=cuts),
        "memory": lambda row: row.memory,
        "time (us)": lambda row: interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, digits(row)),
    }
    if rows[0].cadence == "streaming":
        columns["mean"] = lambda row: (
            f"{row.mean_us:.{digits(row)}f} ({row.rank_min_us:.{digits(row)}f} to {row.rank_max_us:.{digits(row)}f})"
        )
    if any(row.model_us is not None for row in rows):
        columns["model"] = lambda row: "" if row.model_us is None else f"{row.model_us:.{digits(row)}f}"
    return columns | {
        "busbw": lambda row: f"{row.busbw_GBps:.2f}",
        "/ peer": lambda row: f"{row.over_peer:.2f}",
        "wrong": lambda row: str(row.wrong),
    }


def digits(row: Row) -> int:
    return 0 if row.p50_us >= 100 else 1


def name_of(row: Row) -> str:
    """The library whose call it is, or the contestant."""
    who = contestant(row.algorithm)
    return who.maker if who.is_library else row.algorithm


def label(row: Row, *, cuts: bool) -> str:
    """The contestant, what ``auto`` has chosen, and the segment where there are several."""
    name = row.algorithm if row.chosen == row.algorithm else f"{row.algorithm} ({row.chosen})"
    is_ours = contestant(row.algorithm).maker == "ours"
    return f"{name}, {format_bytes(row.segment_bytes)}" if cuts and is_ours else name


def summary_of(rows: Sequence[Row]) -> Table | str:
    """Ours over the fastest call of an MPI library at each size."""
    found = against_mpi(rows)
    if not found:
        return ""
    what = f"{rows[0].collective}, {plural(rows[0].ranks, 'rank')}"
    peers = ", ".join(dict.fromkeys(row.peer for row in rows))
    summary = Table(title=f"{what}: time / fastest MPI call, geometric means", caption=f"fastest were: {peers}")
    summary.add_column("algorithm")
    for name in CLASSES:
        summary.add_column(name, justify="right")
    for name, means in found.items():
        summary.add_row(name, *("" if mean is None else f"{mean:.2f}" for mean in means))
    return summary


def fit_text(fit: Fit | None) -> str:
    """The fitted network in words."""
    if fit is None:
        needed = "two sizes of an algorithm of ours that sends messages"
        return f"No network fitted: that needs {needed}, on 2 to {MOST_RANKS} ranks."
    network = fit.network
    beta, gamma = (f"{1e-9 / value:.2f} GB/s" if value else "no limit" for value in (network.beta, network.gamma))
    if "gamma" not in fit.told:
        gamma = "unknown (these rows cannot tell gamma from beta: 1/beta covers both)"
    o = f"{network.o * 1e6:.1f} us"
    if "o" not in fit.told:
        o = "unknown (these rows cannot tell o from alpha, which has both)"
    return (
        f"Network fitted to {plural(fit.rows, 'row')}: alpha {network.alpha * 1e6:.1f} us, o {o}, 1/beta {beta}, "
        f"1/gamma {gamma}; the median row is {fit.residual:.0%} off the model."
    )


KERNEL_COLUMNS: dict[str, Callable[[KernelRow], str]] = {
    "kernel": lambda row: row.kernel,
    "tensors": lambda row: row.tensors,
    "number": lambda row: str(row.number),
    "bucket": lambda row: f"{row.bucket_bytes / 1e6:.1f} MB {row.bucket_dtype}",
    "time (us)": lambda row: interval(row.p50_us, row.ci_low_us, row.ci_high_us, 1, 0),
    "GB/s": lambda row: f"{row.GBps:.1f}",
    "/ copy": lambda row: f"{row.of_copy:.2f}",
    "/ one by one": lambda row: "" if row.faster_than_each is None else f"{row.faster_than_each:.1f} x",
}


def show_kernels(world: World, rows: Sequence[KernelRow], device: str) -> None:
    """One line per kernel and list of tensors."""
    found = table(
        [rows],
        KERNEL_COLUMNS,
        left=("kernel", "tensors"),
        title=f"kernels on {device}, fp32 tensors, 1 rank",
        caption=f"us: medians; {PLUS_MINUS}; GB/s: bytes read and written; / copy: bandwidth over that of one copy of "
        "the bucket; / one by one: how many times as fast as one copy per tensor",
    )
    console(world).print(found)
