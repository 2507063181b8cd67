"""Tables and progress bars for people. Rank 0 alone shows anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dear_mpi.figures.stats import median
from dear_mpi.ranks.world import World
from dear_mpi.training.compare import turns
from dear_mpi.training.config import Config

__all__ = [
    "bar",
    "comparison_progress",
    "console",
    "interval",
    "show_comparison",
    "show_training",
    "training_progress",
]


def console(world: World, *, stderr: bool = False) -> Console:
    """Where this rank writes: nowhere, unless it is rank 0."""
    return Console(quiet=world.rank != 0, stderr=stderr, highlight=False)


@contextmanager
def bar(world: World, total: int, note: str) -> Iterator[Callable[[str], object]]:
    """A progress bar on standard error; the call advances it by one and replaces the note."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(world, stderr=True), transient=True, disable=world.rank != 0) as progress:
        task = progress.add_task(note, total=total)
        yield lambda note: progress.update(task, advance=1, description=note)


@contextmanager
def training_progress(world: World, config: Config) -> Iterator[Callable[[int, float], object]]:
    """For ``train``: iterations and loss."""
    with bar(world, config.iterations, f"{config.model}, {config.schedule}") as advance:
        yield lambda iteration, loss: advance(f"{config.model}, {config.schedule}, loss {loss:.4f}")


@contextmanager
def comparison_progress(world: World, config: Config, names: Sequence[str]) -> Iterator[Callable[[str], object]]:
    """For ``compare``: blocks of iterations."""
    with bar(world, len(turns(config.iterations)) * len(names), config.model) as advance:
        yield lambda name: advance(f"{config.model}, {name}")


def show_training(world: World, report: dict[str, Any]) -> None:
    """What a training run ended with."""
    data = f" on {report['data']}" if report["data"] else ""
    table = Table(
        title=f"{report['model']}{data}, {report['device']}, {report['ranks']} ranks over {report['transport']}",
        caption="times: medians over iterations of the slowest rank",
        show_header=False,
    )
    accuracy, steady = report["accuracy"], median(report["iteration_s"][1:] or report["iteration_s"])
    rows = {
        "schedule": f"{report['schedule']}, {report['algorithm']}, {report['buckets']} buckets ({report['fusion']})",
        "iterations": f"{report['iterations']}" + (f", batch {report['batch']}" if report["data"] else ""),
        "loss, first and last": f"{report['loss'][0]:.4f}  {report['loss'][-1]:.4f}" if report["data"] else None,
        "test accuracy": None if accuracy is None else f"{accuracy:.2%}",
        "iteration": milliseconds(steady.value),
        "compute": milliseconds(report["compute_s"]),
        "exposed communication": milliseconds(report["exposed_comm_s"]),
        "the rest (updates, loss, data)": milliseconds(
            max(0.0, steady.value - report["compute_s"] - report["exposed_comm_s"])
        ),
        "ideal bound": milliseconds(report["bound_s"]),
        "parameters, all ranks": f"sha256 {report['params_sha256'][:16]}...",
    }
    for name, text in rows.items():
        if text is not None:
            table.add_row(name, text)
    console(world).print(table)


def show_comparison(world: World, rows: Sequence[dict[str, Any]]) -> None:
    """Schedules side by side."""
    first = rows[0]
    title = (
        f"{first['model']}, {first['device']}, {first['ranks']} ranks, {first['buckets']} buckets ({first['fusion']})"
    )
    caption = "ms: medians over iterations of the slowest rank; ± reaches to the farther end of the 95 % interval"
    table = Table(title=f"{title}\n{first['transport']}", caption=caption)
    heads = ("iteration", "compute", "exposed", "bound", "over it", f"speed-up on {first['schedule']}")
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
            interval(row["speedup"], row["ci_low"], row["ci_high"], 1, 3),
        )
    console(world).print(table)


def interval(value: float, low: float, high: float, unit: float, digits: int) -> str:
    """A value with the reach of its interval."""
    return f"{value * unit:.{digits}f} ±{max(value - low, high - value) * unit:.{digits}f}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
