"""The rows of a benchmark as a table."""

import statistics
from collections.abc import Callable, Sequence
from itertools import groupby

from rich.table import Column, Table

from dear_mpi.bench.collective import Report
from dear_mpi.bench.contestants import BEST, contestant
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.interleaved import CALLS
from dear_mpi.bench.machine_file import Row
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


CLASSES = {"below 16 KiB": (0, 2**14 - 1), "16 KiB to 2 MiB": (2**14, 2**21), "above 2 MiB": (2**21 + 1, 2**63)}
OURS = "our best"
CAPTIONS = {
    "isolated": "us: medians over {calls}, each from a barrier to its end on its slowest rank",
    "streaming": f"us: medians over {{calls}}, each the mean of {CALLS[1]} or more calls in a row and over ranks; "
    "mean: of all calls and ranks (of the fastest and of the slowest rank)",
}


def table_of(rows: Sequence[Row]) -> Table:
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
        columns["mean"] = lambda row: "{1:.{0}f} ({2:.{0}f} to {3:.{0}f})".format(
            digits(row), row.mean_us, row.rank_min_us, row.rank_max_us
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
    classes, title = (Column(name, justify="right") for name in CLASSES), "time / fastest MPI call, geometric means"
    summary = Table("algorithm", *classes, title=f"{what}: {title}", caption=f"fastest were: {peers}")
    for name, means in found.items():
        summary.add_row(name, *("" if mean is None else f"{mean:.2f}" for mean in means))
    return summary


def all_calls(row: Row) -> str:
    """The name that stands for all calls of the library that made this row; the name of nobody, if none did."""
    return f"{contestant(row.algorithm).maker}{BEST}"


def shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows of the contestants that were named; for a library's best call, its best row at each size."""
    best: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = all_calls(row), row.bytes
        best[key] = min(best.get(key, row), row, key=lambda row: row.p50_us)
    fastest = [row for (name, _), row in best.items() if name in names]
    return [row for row in rows if row.algorithm in names or row in fastest]


def against_mpi(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """For each of ours, and for the best of them: the geometric mean of its times over its peers' times, per class.

    Rows are of one collective. A row whose interval is wider than its median tells nothing, nor does one whose peer has
    such an interval. A class counts only the sizes that tell something of every algorithm with a mean there. None where
    a class has no such size.
    """
    noisy = {(row.algorithm, row.bytes) for row in rows if row.ci_high_us - row.ci_low_us > row.p50_us}
    ratios: dict[str, dict[int, float]] = {}
    for row in rows:
        told = not noisy & {(row.algorithm, row.bytes), (row.peer, row.bytes)}
        if told and contestant(row.algorithm).maker == "ours" and contestant(row.peer).is_library:
            for name in (row.algorithm, OURS):
                mine = ratios.setdefault(name, {})
                mine[row.bytes] = min(row.over_peer, mine.get(row.bytes, row.over_peer))
    names = sorted(ratios, key=lambda name: name == OURS)
    if len(names) == 2:  # the only one of ours is the best of them
        names.remove(OURS)
    columns = [column([ratios[name] for name in names], *sizes) for sizes in CLASSES.values()]
    return {name: list(means) for name, *means in zip(names, *columns, strict=True)}


def column(ratios: Sequence[dict[int, float]], low: int, high: int) -> list[float | None]:
    """The means of all over the same sizes."""
    chosen = [{size: ratio for size, ratio in each.items() if low <= size <= high} for each in ratios]
    common = set[int]().union(*chosen).intersection(*filter(None, chosen))
    return [statistics.geometric_mean([each[size] for size in common]) if each and common else None for each in chosen]


def fit_text(fit: Fit | None) -> str:
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
