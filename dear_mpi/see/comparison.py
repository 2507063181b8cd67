"""The table of ``compare``: schedules side by side, for each fusion, and each schedule at its best."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_ORDERED, FEWEST_SAMPLES
from dear_mpi.reporting.terminal import PLUS_MINUS, console, interval
from dear_mpi.reporting.units import format_hosts
from dear_mpi.see.tables import MEDIANS, algorithm, buckets, route
from dear_mpi.training.runs.compare import compared

Row = dict[str, Any]
LEFT = ("schedule", "")
CLEAR = ("faster", "slower")


def show_comparison(world: World, rows: Sequence[Row]) -> None:
    """A table for each fusion, and one of the best of each schedule where there are several."""
    screen = console(world)
    groups = [list(group) for _, group in groupby(rows, lambda row: row["asked_fusion"])]
    for group in groups:
        screen.print(table_of(group, fusion_text(group)), *notes(group), sep="\n", markup=False)
    if len(groups) > 1:
        screen.print(best_table(rows))


def fusion_text(rows: Sequence[Row]) -> str:
    """How many buckets the rows of a table have, and why.

    >>> fusion_text([{"asked_fusion": "own", "buckets": 4}, {"asked_fusion": "own", "buckets": 9}])
    '4 to 9 buckets (fusion own)'
    """
    counts, asked = sorted({row["buckets"] for row in rows}), rows[0]["asked_fusion"]
    if len(counts) == 1:
        return buckets({"buckets": counts[0], "fusion": asked})
    return f"{counts[0]} to {counts[-1]} buckets (fusion {asked})"


def table_of(rows: Sequence[Row], fused: str) -> Table:
    """Schedules with one fusion."""
    first = rows[0]
    title = f"{first['model']}, {first['device']}, {format_hosts(first['hosts'])}, {fused}"
    title += f"\n{algorithm(first)}{route(first)} over {first['transport']}"
    parts = "exposed: waiting for communication; rest: updates, the loss, packing; hidden: of what could be"
    ends = "predicted: by the virtual fabric, from this compute and what collectives cost alone"
    ends += "; bound: least time possible"
    caption = f"ms: {MEDIANS}; {parts}; {ends}; speed-up: over {first['schedule']}; {PLUS_MINUS}"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=0, show_edge=False)
    for head in (
        "schedule",
        "iteration",
        "compute",
        "exposed",
        "rest",
        "hidden",
        "pre-\ndicted",
        "bound",
        "speed-up",
        "",
    ):
        # The column of verdicts has no head. Of 80 columns they take 79: none is cut.
        words = max(map(len, head.split("\n"))) if head else len("baseline")
        table.add_column(head, justify="left" if head in LEFT else "right", min_width=words, no_wrap=head == "schedule")
    digits = 0 if first["median_s"] >= 0.1 else 2
    for row in rows:
        table.add_row(
            row["schedule"],
            interval(row["median_s"], row["median_low_s"], row["median_high_s"], 1e3, digits),
            f"{row['compute_s'] * 1e3:.{digits}f}",
            f"{row['exposed_comm_s'] * 1e3:.{digits}f}",
            f"{row['rest_s'] * 1e3:.{digits}f}",
            "-" if row["hidden"] is None else f"{row['hidden']:.0%}",
            f"{row['predicted_s'] * 1e3:.{digits}f}",
            f"{row['bound_s'] * 1e3:.{digits}f}",
            *gain(row),
        )
    return table


def gain(found: Row) -> tuple[str, str]:
    """A speed-up and its verdict; no figure if the measurement is too noisy, and no interval for the baseline.

    >>> gain({"verdict": "faster", "speedup": 1.25, "ci_low": 1.125, "ci_high": 1.375})
    ('1.250 ±0.125', 'faster')
    """
    known = {"too noisy": "-", "baseline": "1.000"}
    verdict = found["verdict"]
    return known.get(verdict) or interval(found["speedup"], found["ci_low"], found["ci_high"], 1, 3), verdict


def waits(row: Row, digits: int) -> str:
    """For which collectives the compute of a schedule has waited, where these are several.

    >>> waits({"schedule": "dear", "exposed_s": {"reduce_scatter": 0.25, "all_gather": 0.1, "loss": 1e-6}}, 0)
    'dear waits: reduce_scatter 250, all_gather 100'
    """
    found = {name: seconds for name, seconds in row["exposed_s"].items() if seconds >= 0.5e-3 / 10**digits}
    parts = ", ".join(f"{name} {seconds * 1e3:.{digits}f}" for name, seconds in found.items())
    return f"{row['schedule']} waits: {parts}" if len(found) > 1 else ""


def best_table(rows: Sequence[Row]) -> Table:
    """Each schedule with the fusion that suits it best."""
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    best = [min((row for row in rows if row["schedule"] == name), key=lambda row: row["median_s"]) for name in names]
    caption = "the fastest of those above, by medians: chosen after they were seen, so a little too good"
    caption += f"; speed-up: over {names[0]}; {PLUS_MINUS}"
    table = Table(title="Each schedule with its best fusion", caption=caption, box=SIMPLE_HEAD, padding=0)
    for head in ("schedule", "fusion", "buckets", "iteration", "speed-up", ""):
        table.add_column(head, justify="left" if head in (*LEFT, "fusion") else "right")
    digits = 0 if best[0]["median_s"] >= 0.1 else 2
    for row in best:
        asked = row["asked_fusion"]
        table.add_row(
            row["schedule"],
            asked if asked == row["fusion"] else f"{asked}: {row['fusion']:.20}",
            str(row["buckets"]),
            interval(row["median_s"], row["median_low_s"], row["median_high_s"], 1e3, digits),
            *gain(compared(row["iteration_s"], best[0]["iteration_s"])),
        )
    return table


def notes(rows: Sequence[Row]) -> list[str]:
    """What was waited for; and what theory says: which bounds are equal, and what one bucket means."""
    first, digits = rows[0], 0 if rows[0]["median_s"] >= 0.1 else 2
    few = f"Fewer than {FEWEST_SAMPLES} iterations have no 95 % interval: ± spans them all, and none is called faster."
    waited = [text for text in (waits(row, digits) for row in rows) if text]
    if waited:
        waited[0] = f"ms, means over iterations and ranks: {waited[0]}"
    waited += [few] * (len(rows) > 1 and first["iterations"] < FEWEST_SAMPLES)
    if FEWEST_SAMPLES <= first["iterations"] < FEWEST_ORDERED and any(row["verdict"] in CLEAR for row in rows):
        waited.append(
            f"Fewer than {FEWEST_ORDERED} iterations do not show whether the machine was slow for several in a row: "
            "verdicts may be wrong more often than in 5 % of cases."
        )
    if first["ranks"] > 1 and all(row["buckets"] == 1 for row in rows):
        what = "With one bucket, only the layers before the first trained one can overlap communication"
        return [*waited, f"{what}: all others run before it or after it. Try a finer --fusion."]
    return waited + [
        f"{row['schedule']} and {first['schedule']} have equal bounds here: the least time possible is the same."
        for row in rows[1:]
        if 0.99 <= row["ideal_speedup"] <= 1.01 and row["verdict"] not in CLEAR
    ]


def heading(rows: Sequence[Row]) -> str:
    """What all rows share, below the title of a picture."""
    first = rows[0]
    where = f"{first['device']}, {format_hosts(first['hosts'])}, over {first['transport']}"
    return f"Measured, with {algorithm(first)} on {where}\nmedians"


def as_sweep(rows: Sequence[Row]) -> list[Row]:
    """The rows as ``see/sweep`` draws them."""
    return [
        row | {"iteration_s": row["median_s"], "speedup_vs_wfbp": row["speedup"], "fusion": row["asked_fusion"]}
        for row in rows
    ]
