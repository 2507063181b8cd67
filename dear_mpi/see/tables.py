"""Print the tables of ``train`` and ``compare``."""

from collections import Counter
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_ORDERED, FEWEST_SAMPLES, median
from dear_mpi.reporting.terminal import PLUS_MINUS, alike, console, interval, listing, table
from dear_mpi.reporting.units import format_hosts, grouped, plural
from dear_mpi.training.runs.compare import compared
from dear_mpi.training.virtual_trainer import UNFAIR

Row = dict[str, Any]
REACHED = 1.005  # times its bound: an iteration that reaches it
ALL_REACHED = "Each row reaches its schedule's bound: another schedule, other buckets or a faster network may help."
ROUNDS = ", or the mean of a round of median length"
MEDIANS = "of the iteration of median length, on its slowest rank"
ABOUT_TIMES = (
    "exposed: waiting for communication; rest: updates, the loss, packing; hidden: of what could be; "
    "predicted: by the virtual fabric, from this compute and what collectives cost alone; bound: least time possible"
)
OF_FUSION = ("schedule", "iteration", "compute", "exposed", "rest", "hidden", "pre-\ndicted", "bound", "speed-up", "")
# Differing accuracies replace the overlap columns.
OF_RESULTS = ("schedule", "iteration", "exposed", "speed-up", "", "accu-\nracy")
ABOUT_RESULTS = "exposed: waiting for communication; accuracy: on test data, after equally many iterations"
OF_BEST = ("schedule", "fusion", "buckets", "iteration", "speed-up", "")
LEFT = ("schedule", "fusion", "")
TIMES = {
    "compute": "compute_s",
    "exposed": "exposed_comm_s",
    "rest": "rest_s",
    "pre-\ndicted": "predicted_s",
    "bound": "bound_s",
}


def show_training(world: World, report: dict[str, Any]) -> None:
    data = f" on {report['data']}" if report["data"] else ""
    where = f"{report['device']}, {format_hosts(report['hosts'])}, over {report['transport']}"
    counted = report["iteration_s"][report["uncounted"] :] or report["iteration_s"]
    accuracy, steady_s = report["accuracy"], median(counted).value
    fused = buckets(report["fusion"], [report["buckets"]])
    rest_s = round(steady_s - report["compute_s"] - report["exposed_comm_s"], 9) + 0.0  # never -0.00
    times_s = {
        "time of an iteration": steady_s,
        "- forward and backward": report["compute_s"],
        "- exposed communication": report["exposed_comm_s"],
        "- the rest (updates, loss, packing)": rest_s,
        "bound (least time possible)": report["bound_s"],
    }
    rows = {
        "schedule": f"{report['schedule']}, {algorithm(report)}, {fused}{route(report)}",
        "fusion found by": tuned(report),
        "iterations": f"{report['iterations']}" + (f", batch {report['batch']}" if report["data"] else ""),
        "loss, first and last": f"{report['loss'][0]:.4f}, {report['loss'][-1]:.4f}" if report["data"] else None,
        "test accuracy": None if accuracy is None else f"{accuracy:.2%}",
        **{name: f"{seconds * 1e3:.2f} ms" for name, seconds in times_s.items()},
        "parameters, same on all ranks": f"sha256 {report['params_sha256'][:16]}...",
    }
    console(world).print(listing(rows, title=f"{report['model']}{data}, {where}", caption=f"times {MEDIANS}"))


def show_comparison(world: World, rows: Sequence[Row]) -> None:
    """Print a table for each fusion, and one of each schedule's best if there are several."""
    screen, rows = console(world), named(rows, "wire")
    groups = grouped(rows, itemgetter("asked_fusion"))
    for group in groups.values():
        screen.print(fusion_table(group), *notes(group), sep="\n")
    if len(groups) > 1:
        screen.print(best_table(rows), *filter(None, [slow_baseline(rows)]), sep="\n")


def named(rows: Sequence[Row], *keys: str) -> list[Row]:
    several = ["schedule", *(key for key in keys if not alike(key, rows))]
    return [{**row, "schedule": ", ".join(str(row[key]) for key in several)} for row in rows]


def fusion_table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    fused = buckets(first["asked_fusion"], [row["buckets"] for row in rows])
    title = f"{first['model']}, {first['device']}, {format_hosts(first['hosts'])}, {fused}"
    title += f"\n{algorithm(first)}{route(first) * alike('route', rows)} over {first['transport']}"
    about, heads = (ABOUT_TIMES, OF_FUSION) if alike("accuracy", rows) else (ABOUT_RESULTS, OF_RESULTS)
    counts = " or ".join(map(str, sorted({row["iterations"] for row in rows})))
    whole = f"{ROUNDS}; of {counts} iterations each, in whole rounds: {first['asked_iterations']} were asked for"
    rounds = whole * any(row["period"] > 1 for row in rows)
    return table_of(rows, heads, title, f"ms {MEDIANS}{rounds}; {about}", first["schedule"])


def best_table(rows: Sequence[Row]) -> Table:
    best = [min(group, key=itemgetter("median_s")) for group in grouped(rows, itemgetter("schedule")).values()]
    first = samples(best[0])
    best = [row | compared(first if row is best[0] else samples(row), first) for row in best]
    caption = "the fastest of those above, by medians: chosen after they were seen, so a little too good"
    return table_of(best, OF_BEST, "Each schedule with its best fusion", caption, best[0]["schedule"])


def samples(row: Row) -> list[float]:
    """Return seconds per iteration, averaged over whole sync intervals if iterations differ."""
    return list(np.reshape(row["iteration_s"], (-1, row["period"])).mean(axis=1))


def table_of(rows: Sequence[Row], heads: Sequence[str], title: str, caption: str, base: str) -> Table:
    digits = 0 if rows[0]["median_s"] >= 0.1 else 2
    columns = {head: itemgetter(head) for head in heads}
    caption += f"; speed-up: over {base}; {PLUS_MINUS}"
    how: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": 0, "show_edge": False}
    return table([[cells(row, digits) for row in rows]], columns, left=LEFT, title=title, caption=caption, **how)


def cells(row: Row, digits: int) -> dict[str, str]:
    """Return a schedule's cells, by column head; ``digits``: decimals of milliseconds."""
    asked, fusion, hidden = row["asked_fusion"], row["fusion"], row["hidden"]
    return {head: f"{row[key] * 1e3:.{digits}f}" for head, key in TIMES.items()} | {
        "schedule": row["schedule"],
        "fusion": asked if asked == fusion else f"{asked}: {fusion:.20}",
        "buckets": str(row["buckets"]),
        "iteration": interval(row["median_s"], row["median_low_s"], row["median_high_s"], 1e3, digits),
        "hidden": "-" if hidden is None else f"{hidden:.0%}",
        "speed-up": gain(row),
        "": row["verdict"],
        "accu-\nracy": "-" if row["accuracy"] is None else f"{row['accuracy']:.1%}",
    }


def gain(row: Row) -> str:
    """Format a speed-up; no figure if it is too noisy, and no interval for the baseline.

    >>> gain({"verdict": "faster", "speedup": 1.25, "ci_low": 1.125, "ci_high": 1.375})
    '1.250 ±0.125'
    """
    known = {"too noisy": "-", "baseline": "1.000"}
    return known.get(row["verdict"]) or interval(row["speedup"], row["ci_low"], row["ci_high"], 1, 3)


def notes(rows: Sequence[Row]) -> list[str]:
    count, said = min(row["iterations"] // row["period"] for row in rows), list[str]()
    unit = "rounds" if any(row["period"] > 1 for row in rows) else "iterations"
    if len(rows) > 1 and count < FEWEST_SAMPLES:
        few = f"Fewer than {FEWEST_SAMPLES} {unit} have no 95 % interval"
        said.append(f"{few}: ± spans them all, and none is called faster.")
    if FEWEST_SAMPLES <= count < FEWEST_ORDERED and any(row["verdict"] in ("faster", "slower") for row in rows):
        few = f"Fewer than {FEWEST_ORDERED} {unit} do not show whether the machine was slow for several in a row"
        said.append(f"{few}: verdicts may be wrong more often than in 5 % of cases.")
    if rows[0]["ranks"] > 1 and all(row["buckets"] == 1 for row in rows):
        what = "With one bucket, only the layers before the first trained one can overlap communication"
        said.append(f"{what}: all others run before it or after it. Try a finer --fusion.")
    elif len(rows) > 1 and all(row["median_s"] <= REACHED * (row["bound_s"] + row["rest_s"]) for row in rows):
        said.append(ALL_REACHED)
    return said


def slow_baseline(rows: Sequence[Row]) -> str:
    """Warn if the baseline is clearly slower than with other buckets; else ""."""
    bases = [row for row in rows if row["schedule"] == rows[0]["schedule"]]
    worst, best = (choose(bases, key=lambda row: row["median_s"]) for choose in (max, min))
    over = worst["median_s"] / best["median_s"] - 1 if best["median_s"] else 0.0
    if over <= UNFAIR or worst["median_low_s"] <= best["median_high_s"]:
        return ""
    slow, fast = (f"{row['median_s'] * 1e3:.1f} ms with {row['asked_fusion']}" for row in (worst, best))
    return f"warning: {best['schedule']} takes {slow}, {fast}: with the former, speed-ups are {over:.1%} too high."


def buckets(fusion: str, counts: Collection[int]) -> str:
    """
    >>> buckets("none", [4]), buckets("25MB", [1]), buckets("own", [9, 4])
    ('4 buckets (one per layer)', '1 bucket (fusion 25MB)', '4 to 9 buckets (fusion own)')
    """
    few, most = min(counts), max(counts)
    many = plural(few, "bucket") if few == most else f"{few} to {most} buckets"
    return f"{many} ({'one per layer' if fusion == 'none' else f'fusion {fusion}'})"


def tuned(report: dict[str, Any]) -> str | None:
    """
    >>> tuned({"tuner": "bo", "tuned": 10 * [{}], "fusion": "37.2MB"})
    '10 trials of bo; --fusion 37.2MB repeats it'
    """
    if report["tuner"] is None:
        return None
    what = "prediction" if report["tuner"] == "auto" else "trial"
    return f"{plural(len(report['tuned']), what)} of {report['tuner']}; --fusion {report['fusion']} repeats it"


def algorithm(report: dict[str, Any]) -> str:
    """
    >>> algorithm({"algorithm": "auto", "chosen": ["ring", "bruck", "ring"]})
    'auto (2 ring, 1 bruck)'
    """
    counts = Counter(report["chosen"])
    chosen = ", ".join(f"{count} {name}" for name, count in counts.items())
    return str(report["algorithm"]) + (f" ({chosen})" if report["algorithm"] not in counts else "")


def route(report: dict[str, Any]) -> str:
    return {"full": "", "sharded": ", sharded update"}.get(report["route"], f", route {report['route']}")
