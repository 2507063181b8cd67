"""The tables of ``train`` and ``compare``."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import PLUS_MINUS, console, interval, milliseconds
from dear_mpi.reporting.units import format_hosts, plural

__all__ = ["show_comparison", "show_training"]

MEDIANS = "those of the iteration of median length, on its slowest rank"


def show_training(world: World, report: dict[str, Any]) -> None:
    """What a training run ended with."""
    data = f" on {report['data']}" if report["data"] else ""
    where = f"{report['device']}, {format_hosts(report['hosts'])}, over {report['transport']}"
    table = Table(title=f"{report['model']}{data}, {where}", caption=f"times: {MEDIANS}", show_header=False)
    accuracy, steady_s = report["accuracy"], median(report["iteration_s"][2:] or report["iteration_s"]).value
    rest_s = round(steady_s - report["compute_s"] - report["exposed_comm_s"], 9) + 0.0  # never "-0.00"
    rows = {
        "schedule": f"{report['schedule']}, {algorithm(report)}, {buckets(report)}" + sharded(report),
        "iterations": f"{report['iterations']}" + (f", batch {report['batch']}" if report["data"] else ""),
        "loss, first and last": f"{report['loss'][0]:.4f}, {report['loss'][-1]:.4f}" if report["data"] else None,
        "test accuracy": None if accuracy is None else f"{accuracy:.2%}",
        "time of an iteration": milliseconds(steady_s),
        "- forward and backward": milliseconds(report["compute_s"]),
        "- exposed communication": milliseconds(report["exposed_comm_s"]),
        "- the rest (updates, loss, packing)": milliseconds(rest_s),
        "bound (least time possible)": milliseconds(report["bound_s"]),
        "parameters, same on all ranks": f"sha256 {report['params_sha256'][:16]}...",
    }
    for name, text in rows.items():
        if text is not None:
            table.add_row(name, text)
    console(world).print(table)


def buckets(report: dict[str, Any]) -> str:
    """How many buckets there are, and why.

    >>> buckets({"buckets": 4, "fusion": "none"}), buckets({"buckets": 1, "fusion": "25MB"})
    ('4 buckets (one per layer)', '1 bucket (fusion 25MB)')
    """
    why = "one per layer" if report["fusion"] == "none" else f"fusion {report['fusion']}"
    return f"{plural(report['buckets'], 'bucket')} ({why})"


def algorithm(report: dict[str, Any]) -> str:
    """Which algorithm was asked for, and what it became.

    >>> algorithm({"algorithm": "auto", "chosen": ["ring", "bruck", "ring"]})
    'auto (2 ring, 1 bruck)'
    """
    counts = Counter(report["chosen"])
    chosen = ", ".join(f"{count} {name}" for name, count in counts.items())
    return str(report["algorithm"]) + (f" ({chosen})" if report["algorithm"] not in counts else "")


def sharded(report: dict[str, Any]) -> str:
    """What the all-gathers carry, if it is not gradients."""
    return ", sharded update" if report["update"] == "sharded" else ""


def show_comparison(world: World, rows: Sequence[dict[str, Any]]) -> None:
    """Schedules side by side."""
    first = rows[0]
    title = f"{first['model']}, {first['device']}, {format_hosts(first['hosts'])}, {buckets(first)}"
    parts = "exposed: waiting for communication; bound: least time possible; / bound: iteration / bound"
    caption = f"ms: {MEDIANS}; {parts}; speed-up: over {first['schedule']}; {PLUS_MINUS}"
    title += f"\n{algorithm(first)}{sharded(first)} over {first['transport']}"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=0)
    heads = ("iteration", "compute", "exposed", "bound", "/ bound", "speed-up", "")
    for head in ("schedule", *heads):
        table.add_column(head, justify="left" if head == "schedule" else "right")
    digits = 0 if first["median_s"] >= 0.1 else 2
    for row in rows:
        table.add_row(
            row["schedule"],
            interval(row["median_s"], row["median_low_s"], row["median_high_s"], 1e3, digits),
            f"{row['compute_s'] * 1e3:.{digits}f}",
            f"{row['exposed_comm_s'] * 1e3:.{digits}f}",
            f"{row['bound_s'] * 1e3:.{digits}f}",
            f"{row['median_s'] / row['bound_s']:.3f}",
            "-" if row["verdict"] == "too noisy" else interval(row["speedup"], row["ci_low"], row["ci_high"], 1, 3),
            row["verdict"],
        )
    console(world).print(table, *notes(rows), sep="\n")


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where nothing can be gained, why."""
    first = rows[0]
    if first["ranks"] > 1 and first["buckets"] == 1:
        why = "it is complete when backward ends, and needed when forward begins: try a finer --fusion"
        return [f"With one bucket no schedule can overlap anything, for {why}."]
    return [
        f"{row['schedule']} can gain nothing over {first['schedule']} here: their bounds are equal."
        for row in rows[1:]
        if 0.99 <= row["ideal_speedup"] <= 1.01
    ]
