"""The table of ``train``, and how tables name buckets and algorithms."""

from collections import Counter
from typing import Any

from rich.table import Table

from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import console, milliseconds
from dear_mpi.reporting.units import format_hosts, plural

MEDIANS = "those of the iteration of median length, on its slowest rank"


def show_training(world: World, report: dict[str, Any]) -> None:
    """What a training run ended with."""
    data = f" on {report['data']}" if report["data"] else ""
    where = f"{report['device']}, {format_hosts(report['hosts'])}, over {report['transport']}"
    table = Table(title=f"{report['model']}{data}, {where}", caption=f"times: {MEDIANS}", show_header=False)
    counted = report["iteration_s"][report["uncounted"] :] or report["iteration_s"]
    accuracy, steady_s = report["accuracy"], median(counted).value
    rest_s = round(steady_s - report["compute_s"] - report["exposed_comm_s"], 9) + 0.0  # never "-0.00"
    rows = {
        "schedule": f"{report['schedule']}, {algorithm(report)}, {buckets(report)}" + route(report),
        "fusion found by": tuned(report),
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


def tuned(report: dict[str, Any]) -> str | None:
    """How fusion was found, if it was, and what repeats it.

    >>> tuned({"tuner": "bo:grid", "tuned": 10 * [{}], "fusion": "37.2MB"})
    '10 trials of bo:grid; --fusion 37.2MB repeats it'
    """
    if report["tuner"] is None:
        return None
    what = "prediction" if report["tuner"] == "auto" else "trial"
    return f"{plural(len(report['tuned']), what)} of {report['tuner']}; --fusion {report['fusion']} repeats it"


def algorithm(report: dict[str, Any]) -> str:
    """Which algorithm was asked for, and what it became.

    >>> algorithm({"algorithm": "auto", "chosen": ["ring", "bruck", "ring"]})
    'auto (2 ring, 1 bruck)'
    """
    counts = Counter(report["chosen"])
    chosen = ", ".join(f"{count} {name}" for name, count in counts.items())
    return str(report["algorithm"]) + (f" ({chosen})" if report["algorithm"] not in counts else "")


def route(report: dict[str, Any]) -> str:
    """What buckets go through, if it is not usual."""
    return {"full": "", "sharded": ", sharded update"}.get(report["route"], f", route {report['route']}")
