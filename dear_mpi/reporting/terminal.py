"""What people see on a terminal. Rank 0 alone shows anything."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dear_mpi.ranks.world import World

__all__ = ["PLUS_MINUS", "bar", "console", "interval", "milliseconds"]

PLUS_MINUS = "± is the distance to the farther end of the 95 % interval"


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


def interval(value: float, low: float, high: float, unit: float, digits: int) -> str:
    """A value with the reach of its interval, which ``PLUS_MINUS`` explains.

    >>> interval(0.010, 0.009, 0.013, 1e3, 1)
    '10.0 ±3.0'
    """
    return f"{value * unit:.{digits}f} ±{max(value - low, high - value) * unit:.{digits}f}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
